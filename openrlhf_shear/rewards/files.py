"""The reward files of this package that flags can name. Light: each process of a reward file imports it."""

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
