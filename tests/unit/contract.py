"""Check that the upstream functions this fork relies on still have the recorded signature and source.

`tests/data/contract/cluster.json` lists every function of OpenRLHF, DeepSpeed, vLLM and Ray that the fork overrides,
replaces or calls. An entry has the signature, a digest of the source, and the place in the fork that uses it. They come
from the installed files, which are parsed and not imported. Comments, docstrings, annotations and line breaks do not
count. `upstream_uses.py` finds the uses and writes the file.

A name is "module:Class.method", "module:function" or "module:Class". A method is looked up as Python does, in the base
classes too, so the digest is of the function that runs. For a class alone, its decorators, bases and fields count.
"""

import ast
import copy
import hashlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from openrlhf_shear.config.syntax import canonical

CONTRACTS = Path(__file__).parents[1] / "data" / "contract"
CLUSTER = CONTRACTS / "cluster.json"
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_TYPES = frozenset({"annotation", "returns", "type_params"})


@dataclass(frozen=True)
class Term:
    """Recorded signature and source digest of an upstream function or class."""

    signature: str  # decorators and parameters; for a class, its bases and annotated fields
    digest: str  # of the source
    use: str = ""  # which part of the fork relies on it, and how


def read(path: Path = CLUSTER) -> dict[str, Term]:
    """Read the recorded terms, by name."""
    return {name: Term(**term) for name, term in json.loads(path.read_text(encoding="utf-8")).items()}


def write(terms: Mapping[str, Term], path: Path = CLUSTER) -> None:
    listed = {name: asdict(terms[name]) for name in sorted(terms)}
    path.write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def changes(terms: Mapping[str, Term], folders: Mapping[str, Path] | None = None) -> list[str]:
    """Return a line for each term that no longer holds: its old and new form, and its use in the fork.

    Args:
        folders: where to look for a package, by package name; the default is the installed one. Missing packages are
            skipped.
    """
    sources = Sources(folders)
    lines = []
    for name, held in terms.items():
        if sources.folder(package(name)) is None:
            continue
        now = sources.term(name)
        if now is None:
            lines.append(f"{name} is gone ({held.use})")
        elif now.signature != held.signature:
            lines.append(f"{name}: {held.signature} is now {now.signature} ({held.use})")
        elif now.digest != held.digest:
            lines.append(f"{name}: source changed ({held.use})")
    return lines


def package(name: str) -> str:
    """Return the top-level package of a name."""
    return name.partition(":")[0].partition(".")[0]


class Sources:
    """Reader of definitions in the source files of packages."""

    def __init__(self, folders: Mapping[str, Path] | None = None):
        self._folders = dict(folders or {})
        self._tree = lru_cache(maxsize=None)(self._parsed)

    def folder(self, package: str) -> Path | None:
        """Return the folder of a top-level package; None if it is not installed."""
        if package not in self._folders:
            spec = importlib.util.find_spec(package)  # imports nothing for a top-level package
            if spec is None or spec.origin is None:
                return None
            self._folders[package] = Path(spec.origin).parent
        return self._folders[package]

    def term(self, name: str) -> Term | None:
        """Return the signature and digest of a named function or class; None if it does not exist."""
        node = self.definition(name)
        return node and Term(_signature(node), _digest(node))

    def definition(self, name: str) -> _Function | ast.ClassDef | None:
        module, _, path = name.partition(":")
        owner, _, method = path.partition(".")
        place = self._top_level(module, owner)
        if place is None or not method:
            return place and place[1]
        return self._method(*place, method)

    def _top_level(self, module: str, name: str) -> tuple[str, _Function | ast.ClassDef] | None:
        """Return a module's global, imported or not, as its defining module and its definition."""
        tree = self._tree(module)
        for node in tree.body if tree is not None else ():
            if isinstance(node, _Function | ast.ClassDef) and node.name == name:
                return module, node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        return self._top_level(self._origin(module, node), alias.name)
        return None

    def _method(self, module: str, owner: _Function | ast.ClassDef, name: str) -> _Function | None:
        if not isinstance(owner, ast.ClassDef):
            return None
        for node in owner.body:
            if isinstance(node, _Function) and node.name == name:
                return node
        parents = (self._top_level(module, base.id) for base in owner.bases if isinstance(base, ast.Name))
        methods = (self._method(*parent, name) for parent in parents if parent)
        return next((method for method in methods if method is not None), None)

    def _origin(self, module: str, node: ast.ImportFrom) -> str:
        package = module if self._file(module).name == "__init__.py" else module.rpartition(".")[0]
        return importlib.util.resolve_name("." * node.level + (node.module or ""), package)

    def _file(self, module: str) -> Path:
        top, *rest = module.split(".")
        folder = self.folder(top)
        path = folder.joinpath(*rest) if folder else Path(module)
        return path / "__init__.py" if path.is_dir() else path.with_name(path.name + ".py")

    def _parsed(self, module: str) -> ast.Module | None:
        path = self._file(module)
        return ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None


def _signature(node: _Function | ast.ClassDef) -> str:
    decorators = "".join(f"@{ast.unparse(decorator)} " for decorator in node.decorator_list)
    if isinstance(node, ast.ClassDef):
        fields = ", ".join(field.target.id for field in node.body if isinstance(field, ast.AnnAssign))
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"{decorators}class ({bases})" + (f" with {fields}" if fields else "")
    arguments = copy.deepcopy(node.args)
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return f"{decorators}{'async ' if isinstance(node, ast.AsyncFunctionDef) else ''}({ast.unparse(arguments)})"


def _digest(node: _Function | ast.ClassDef) -> str:
    if isinstance(node, ast.ClassDef):
        fields = [field for field in node.body if isinstance(field, ast.Assign | ast.AnnAssign)]
        node = ast.ClassDef(node.name, node.bases, node.keywords, fields, node.decorator_list)
    return hashlib.sha256(repr(canonical(node, _TYPES)).encode()).hexdigest()[:16]
