"""Runs assert-style tests inside a jail, against a response that runs in another one.

The tests see the names that the response defines as handles. A name that Python or the task defines (a builtin, a
standard module, a helper of the prompt) is the judge's own, unless it is the one under test. The job has the pipes
`calls` and `replies`, and what `code.tests.AssertTests` holds; the parent hears an outcome and a detail for each test.
"""

import ast
import builtins
import importlib
import os
import symtable
import sys
import traceback
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import runner
import wire
from calls import Client, GoneError, NotComparableError


def main() -> None:
    _, link_out, job = runner.opened()
    for outcome, detail in verdicts(job):
        wire.send(link_out, {"outcome": outcome, "detail": detail})


def verdicts(job: dict) -> Iterator[tuple[str, str]]:
    names: dict[str, object] = {"__name__": "tests"}
    classes: dict[str, type] = {}
    if job["leetcode"]:
        import prelude

        names.update(prelude.NAMES)
        classes = {"ListNode": prelude.ListNode, "TreeNode": prelude.TreeNode}
    client = Client(job["calls"], job["replies"], classes)

    def prepare() -> None:
        exec(_compiled(job["prompt"]), names)
        defined = client.names()
        asked, modules = _asked(job, names)
        names.update({name: importlib.import_module(name) for name in modules})
        names.update({name: client.ask("global", name) for name in asked & {*defined}})
        exec(_compiled(job["setup"]), names)

    problem = _outcome(prepare, client)
    for test in job["tests"]:
        yield problem or _outcome(lambda source=test: exec(_compiled(source), names), client) or ("passed", "")


def _asked(job: dict, known: dict[str, object]) -> tuple[set[str], set[str]]:
    """The names that the response has to define for these tests, and the modules that they use without importing."""
    if job["entry_point"]:
        return {job["entry_point"]}, set()
    source = "\n".join([job["setup"], *job["tests"]])
    used = _free_names(symtable.symtable(source, "<tests>", "exec")) - known.keys()
    nodes = [*ast.walk(ast.parse(source))]
    # `math.isclose(...)`: the module, whatever the response calls by that name.
    bases = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    modules = used & bases & sys.stdlib_module_names
    return used - modules - vars(builtins).keys() or used - modules, modules


def _free_names(module: symtable.SymbolTable) -> set[str]:
    """The global names that a module's code uses, in functions too, but does not define."""
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
    return compile(source, "<tests>", "exec", dont_inherit=True)


def _outcome(work, client: Client) -> tuple[str, str] | None:
    """None if the work went well and the response is still there."""
    try:
        work()
    except (AssertionError, NotComparableError) as error:
        return "wrong_answer", _detail(error)
    except MemoryError as error:
        return "memory", _detail(error)
    except (Exception, GoneError) as error:
        return "error", _detail(error)
    return ("error", f"the response's process is gone: {client.gone}") if client.gone else None


def _detail(error: BaseException) -> str:
    """The error's last line, after the line of the test that met it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<tests>"]
    said = traceback.format_exception_only(error)[-1].strip()
    return f"{said} (line {lines[-1]} of the test)"[:500] if lines else said[:500]


if __name__ == "__main__":
    main()
