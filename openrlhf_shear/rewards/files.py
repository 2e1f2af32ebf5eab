"""Reward files: those of this package that flags can name, and what a file consists of.

Light: each process of a reward file imports it.
"""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
FILES = {  # paths by name
    "last_number": str(_PACKAGE / "rewards" / "last_number.py"),
    "arithmetic": str(_PACKAGE / "tasks" / "arithmetic" / "arithmetic.py"),
}
ABOUT = {  # clauses for `--help`
    "last_number": "compares the last number of the response with that of the label",
    "arithmetic": "the reward of the built-in task",
}


def here(path: str) -> str:
    """Return this node's copy of a reward file of this package; any other path unchanged.

    `ray job submit` unpacks a checkout into another folder on each node.
    """
    inside = {Path(own).relative_to(_PACKAGE.parent).parts: own for own in FILES.values()}
    return next((own for ends, own in inside.items() if Path(path).parts[-len(ends) :] == ends), path)


def digest(path: str) -> str:
    """Return a digest of a reward file and of the files beside it that it imports, also by other such files."""
    folder, waiting, found = Path(path).parent, [Path(path)], {}
    while waiting:
        file = waiting.pop()
        if file not in found and file.is_file():
            found[file] = file.read_bytes()
            waiting += [folder / f"{name}{end}" for name in _imports(found[file]) for end in (".py", "/__init__.py")]
    parts = (f"{file.relative_to(folder)} {hashlib.sha256(found[file]).hexdigest()}" for file in sorted(found))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _imports(text: bytes) -> Iterator[str]:
    """Yield the modules that a file may import, with a slash for each dot."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.replace(".", "/") for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").replace(".", "/")
            yield from (module, *(f"{module}/{each.name}".removeprefix("/") for each in node.names))
