"""Runs assert-style tests inside a jail, against a response that runs in another jail.

The tests see the names that the response defines as handles. Names that Python or the task defines are the judge's own:
a builtin, a standard module or its contents, a helper of the prompt. The name under test is an exception. The job has
the fields of `code.tests.AssertTests`, and `memory_mb`. The parent hears an outcome and a detail for each test, and
whether the response is gone.
"""

import ast
import builtins
import importlib
import resource
import symtable
import sys
import traceback
from collections.abc import Iterator
from functools import cached_property

import prelude
import runner
import wire
from calls import Client, GoneError, NotComparableError, in_place

_IN_PLACE = "in place"  # no test can have this name
_LIBRARY = prelude.NAMES.keys() - {"ListNode", "TreeNode", "list_node", "tree_node", "is_same_list", "is_same_tree"}


def main(job: dict, _: int, link_out: int, calls: int, replies: int) -> None:
    runner.silence()
    runner.confine("", {resource.RLIMIT_AS: job["memory_mb"] << 20})
    classes = {"ListNode": prelude.ListNode, "TreeNode": prelude.TreeNode} if job["leetcode"] else {}
    client = Client(calls, replies, classes)
    for outcome, detail in verdicts(job, client):
        wire.send(link_out, {"outcome": outcome, "detail": detail, "gone": client.gone is not None})


def verdicts(job: dict, client: Client) -> Iterator[tuple[str, str]]:
    names: dict[str, object] = {"__name__": "tests", _IN_PLACE: in_place}
    if job["leetcode"]:
        names.update(prelude.NAMES)

    def prepare() -> None:
        exec(_compiled(job["helpers"]), names)
        defined = client.names()
        needed, modules, library = _needs(job, names)
        names.update({name: importlib.import_module(name) for name in modules})
        names.update({name: prelude.NAMES[name] for name in library})
        names.update({name: client.ask("global", name) for name in needed & {*defined}})
        exec(_compiled(job["setup"]), names)

    problem = _outcome(prepare, client)
    for test in job["tests"]:
        yield problem or _outcome(lambda source=test: exec(_compiled(source), names), client) or ("passed", "")


def _needs(job: dict, known: dict[str, object]) -> tuple[set[str], set[str], set[str]]:
    """Return the names that the response has to define, and the modules and library names that the tests lack.

    The tests use those modules without importing them. A name of the library or of Python is asked for only if no other
    name is left.
    """
    if job["entry_point"]:
        return {job["entry_point"]}, set(), set()
    source = "\n".join([job["setup"], *job["tests"]])
    used = _free_names(symtable.symtable(source, "<tests>", "exec")) - known.keys()
    nodes = [*ast.walk(ast.parse(source))]
    # `math.isclose(...)` means the module, even if the response defines that name.
    bases = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    modules = used & bases & sys.stdlib_module_names
    others = used - modules
    for needed in (others - _LIBRARY - vars(builtins).keys(), others - vars(builtins).keys(), others):
        if needed:
            return needed, modules, (others - needed) & _LIBRARY
    return set(), modules, set()


def _free_names(module: symtable.SymbolTable) -> set[str]:
    """Return the global names that a module's code uses, also in functions, but does not define."""
    used, tables = set(), [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table is module or symbol.is_global())
        }
    return used - {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}


def _compiled(source: str):
    tree = ast.parse(source)
    return compile(ast.fix_missing_locations(_InPlace(tree).visit(tree)), "<tests>", "exec", dont_inherit=True)


class _InPlace(ast.NodeTransformer):
    """Marks the calls that may change their arguments; in other calls, arguments are copies.

    They are calls that are a statement (`order(items)`), and `k = f(items)` in a test that later looks into `items`
    itself (`items[:k]`, `items == ...`).
    """

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree

    @cached_property
    def _looked_into(self) -> set[str]:
        nodes = [*ast.walk(self._tree)]
        looked = [node.value for node in nodes if isinstance(node, ast.Subscript)]
        looked += [side for node in nodes if isinstance(node, ast.Compare) for side in (node.left, *node.comparators)]
        return {node.id for node in looked if isinstance(node, ast.Name)}

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return self._marked(node) if isinstance(node.value, ast.Call) else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if not isinstance(node.value, ast.Call):
            return node
        arguments = [*node.value.args, *(keyword.value for keyword in node.value.keywords)]
        names = {value.id for value in arguments if isinstance(value, ast.Name)}
        return self._marked(node) if names and names & self._looked_into else node

    def _marked(self, node: ast.Expr | ast.Assign) -> ast.AST:
        call = node.value
        call.func = ast.copy_location(ast.Call(ast.Name(_IN_PLACE, ast.Load()), [call.func], []), call.func)
        return node


def _outcome(work, client: Client) -> tuple[str, str] | None:
    """Return None if the work went well, and the response is still there and gave nothing that was refused."""
    client.refused = None
    try:
        work()
    except (AssertionError, NotComparableError) as error:
        return "wrong_answer", _detail(error)
    except MemoryError as error:
        return "memory", _detail(error)
    except (Exception, GoneError) as error:
        return "error", _detail(error)
    if client.gone:
        return "error", f"the response's process is gone: {client.gone}"
    return ("wrong_answer", client.refused) if client.refused else None


def _detail(error: BaseException) -> str:
    """Return the error's last line, with the line of the test that met it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<tests>"]
    message = traceback.format_exception_only(error)[-1].strip()
    return f"{message} (line {lines[-1]} of the test)"[:500] if lines else message[:500]
