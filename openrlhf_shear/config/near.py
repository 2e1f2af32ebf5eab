"""A hint for a name that is none of those known."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], how: str = " (did you mean {}?)") -> str:
    """
    >>> did_you_mean("sheer", ["uniform", "shear"]), did_you_mean("x", ["shear"])
    (' (did you mean shear?)', '')
    """
    near = difflib.get_close_matches(name, list(known), 1)
    return how.format(near[0]) if near else ""
