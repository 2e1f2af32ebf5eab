r"""Lists in one notation: `x=\pm 3`, `n=3,5,7`, `\sqrt2 \text{ or } 1` with commas between their items."""

from collections.abc import Iterable
from itertools import product

import regex as re

from openrlhf_shear.rewards.maths.numbers import read_number
from openrlhf_shear.rewards.maths.splitting import SEPARATORS, inside, split
from openrlhf_shear.rewards.maths.values import without_name

_SIGN = re.compile(r"\\(pm|mp)(?![A-Za-z])\s*+")
_MOST_SIGNS = 4
_THOUSANDS = re.compile(
    r"(?P<name>[^=,]*+=\s*+)(?P<number>[-+]?[0-9]{1,3}(?:,[0-9]{3})++(?![0-9,])(?:\.[0-9]++)?)(?P<rest>[^,=]*+)"
)


def as_list(text: str) -> str:
    r"""Return a tidy list with commas between its items, a sign of either kind as two items, and a name at each item.

    Several solutions become tuples.

    >>> as_list("n=3,5,7"), as_list(r"x=\pm 3")
    ('n=3, n=5, n=7', 'x=3, x=-3')

    >>> as_list("x=1,y=2; x=3,y=4")
    '(x=1, y=2), (x=3, y=4)'
    """
    if text.upper() == text.lower() or read_number(text) is not None:  # no letters, quickly
        return text
    if number := _THOUSANDS.fullmatch(text):
        return f"{number['name']}{number['number'].replace(',', '')}{number['rest']}"
    groups = [split(part, (",", '"and"', "and")) for part in split(text, (";", '"or"', "or"))]
    if len(groups) > 1 and all(len(group) > 1 and all("=" in item for item in group) for group in groups):
        return ", ".join(f"({', '.join(group)})" for group in groups)
    items = [both for item in split(text, SEPARATORS) for both in _both_signs(item)]
    if len(items) < 2:
        return text
    name, value = without_name(items[0])
    if name and items[0].endswith(value) and not any("=" in item for item in items[1:]):
        start = items[0].removesuffix(value).rstrip()
        items = [start + item for item in (value, *items[1:])]
    return ", ".join(items)


def _both_signs(item: str) -> list[str]:
    r"""Return an item for each choice of its signs; with `\mp` in it they are chosen together."""
    signs = _SIGN.findall(item)
    if not 0 < len(signs) <= _MOST_SIGNS or (inside(item) is not None and "," in item):
        return [item]
    pieces = _SIGN.split(item)[::2]
    if "mp" in signs:
        choices = [["+" if sign == first else "-" for sign in signs] for first in ("pm", "mp")]
    else:
        choices = product("+-", repeat=len(signs))
    return [_joined(pieces, choice) for choice in choices]


def _joined(pieces: list[str], signs: Iterable[str]) -> str:
    text = pieces[0]
    for sign, piece in zip(signs, pieces[1:], strict=True):
        before = text.rstrip()
        text += ("" if sign == "+" and (not before or before[-1] in "=({[,|") else sign) + piece
    return text
