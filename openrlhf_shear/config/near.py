"""Hints for unknown names."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], how: str = " (did you mean {}?)") -> str:
    """Return a hint at the known name nearest to `name`, or "" if none is near.

    >>> did_you_mean("sheer", ["uniform", "shear"]), did_you_mean("x", ["shear"])
    (' (did you mean shear?)', '')
    """
    near = difflib.get_close_matches(name, list(known), 1)
    return how.format(near[0]) if near else ""
