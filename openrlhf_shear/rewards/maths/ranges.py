r"""Lists and solved inequalities in one notation: `x=\pm 3` is `x=3, x=-3`, `x<3` is `(-\infty,3)`."""

from dataclasses import dataclass
from itertools import pairwise, product

import regex as re

from openrlhf_shear.rewards.maths.numbers import read_number
from openrlhf_shear.rewards.maths.splitting import LETTER, SEPARATORS, inside, split
from openrlhf_shear.rewards.maths.values import without_name

_BUILDER = re.compile(
    rf"\\\{{\s*(?P<name>{LETTER})\s*(?:\\in\s*\\mathbb\s*\{{?R\}}?\s*)?(?:\\mid(?![A-Za-z])|[|:])(?P<condition>.+)\\\}}"
)
_SIGN = re.compile(r"(<|>|\\(?:le|ge|ne)(?![A-Za-z]))")
_POINT = re.compile(rf"(?P<name>{LETTER})\s*=\s*(?P<value>[^=<>]+)")
_TURNED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne"}
_PM = re.compile(r"\\(pm|mp)(?![A-Za-z])\s*+")
_MOST_SIGNS = 4
_THOUSANDS = re.compile(
    r"(?P<name>[^=,]*+=\s*+)(?P<number>[-+]?[0-9]{1,3}(?:,[0-9]{3})++(?![0-9,])(?:\.[0-9]++)?)(?P<rest>[^,=]*+)"
)
_OR, _AND = ('"or"', "or", r"\cup"), ('"and"', "and")


@dataclass(frozen=True)
class _Range:
    """Bounds of a variable; None: no bound on that side."""

    low: str | None = None
    high: str | None = None
    with_low: bool = False
    with_high: bool = False

    @property
    def is_point(self) -> bool:
        return self.low is not None and self.low == self.high

    def __str__(self) -> str:
        if self.is_point:
            return rf"\{{{self.low}\}}"
        low, high = (r"-\infty" if self.low is None else self.low), (r"\infty" if self.high is None else self.high)
        return f"{'[' if self.with_low else '('}{low},{high}{']' if self.with_high else ')'}"


def as_intervals(text: str) -> tuple[str, str]:
    r"""Return the variable's name and its intervals in a tidy text, which may be a set builder; else ("", the text).

    >>> as_intervals(r"x<-1 or x\ge 3"), as_intervals("1<2")
    (('x', '(-\\infty,-1)\\cup[3,\\infty)'), ('', '1<2'))
    """
    builder = _BUILDER.fullmatch(text.strip())
    ranges, names = _union((builder["condition"] if builder else text).strip())
    if all(each.is_point for each in ranges) or len(names) != 1 or (builder and names != {builder["name"]}):
        return "", text
    return names.pop(), r"\cup".join(map(str, ranges))


def _union(text: str) -> tuple[list[_Range], set[str]]:
    """Return the ranges of conditions joined by or, and, or commas, and their variables; no ranges if unclear."""
    ranges, names = [], set()
    for either in split(text, _OR):
        conditions = [_condition(part) for part in split(either, (*_AND, ",", ";"))]
        if None in conditions:
            return [], names
        names |= {name for name, _ in conditions}
        several = [ranges for _, ranges in conditions]
        ranges += several[0] if len(several) == 1 else _both(several, exclusive="," in either or ";" in either)
    return ranges, names


def _condition(text: str) -> tuple[str, list[_Range]] | None:
    """Return the variable of an inequality that is solved for it, and its ranges; an excluded value makes two.

    `x=1` is a range of a single point.
    """
    if point := _POINT.fullmatch(text.strip()):
        return point["name"], [_Range(point["value"], point["value"], True, True)]
    parts = [part.strip() for part in _SIGN.split(text)]
    values, signs = parts[::2], parts[1::2]
    at = [place for place, value in enumerate(values) if re.fullmatch(LETTER, value)]
    if len(at) != 1 or not 1 <= len(signs) <= 2 or not all(values) or any("=" in value for value in values):
        return None
    name = values[at[0]]
    others = [value for value in values if value is not name]
    if any(re.search(rf"(?<![A-Za-z\\]){re.escape(name)}(?![A-Za-z])", value) for value in others):
        return None
    bounds = {}
    for place, sign in enumerate(signs):
        if at[0] not in (place, place + 1):
            return None
        bounds[sign if at[0] == place else _TURNED[sign]] = values[place + 1 if at[0] == place else place]
    if len(bounds) != len(signs) or (len(signs) == 2 and r"\ne" in bounds):
        return None
    if r"\ne" in bounds:
        return name, [_Range(high=bounds[r"\ne"]), _Range(low=bounds[r"\ne"])]
    low, high = bounds.get(">", bounds.get(r"\ge")), bounds.get("<", bounds.get(r"\le"))
    if len(signs) == 2 and (low is None or high is None):
        return None
    return name, [_Range(low, high, r"\ge" in bounds, r"\le" in bounds)]


def _both(several: list[list[_Range]], exclusive: bool) -> list[_Range]:
    """Return the ranges that hold together; none if unclear.

    `exclusive`: ranges that cannot hold together are alternatives, as in `x<-1, x>3`.
    """
    if any(each.is_point for ranges in several for each in ranges):
        return [each for ranges in several for each in ranges] if exclusive else []
    if all(len(ranges) == 2 for ranges in several):  # x \ne 1, x \ne 2
        left_out = {(number.value, ranges[0].high) for ranges in several if (number := read_number(ranges[0].high))}
        ends = [None, *(text for _, text in sorted(left_out)), None]
        return [_Range(*pair) for pair in pairwise(ends)] if len(left_out) == len(several) else []
    if len(several) != 2 or any(len(ranges) != 1 for ranges in several):
        return []
    (first,), (second,) = several
    below, above = (first, second) if first.low is None else (second, first)
    if below.low is not None or above.high is not None:
        return []
    low, high = read_number(above.low), read_number(below.high)
    if exclusive and low and high and low.value >= high.value:
        return [below, above]
    return [_Range(above.low, below.high, above.with_low, below.with_high)]


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
    signs = _PM.findall(item)
    if not 0 < len(signs) <= _MOST_SIGNS or (inside(item) is not None and "," in item):
        return [item]
    pieces = _PM.split(item)[::2]
    if "mp" in signs:
        choices = [["+" if sign == first else "-" for sign in signs] for first in ("pm", "mp")]
    else:
        choices = product("+-", repeat=len(signs))
    items = []
    for choice in choices:
        text = pieces[0]
        for sign, piece in zip(choice, pieces[1:], strict=True):
            before = text.rstrip()
            text += ("" if sign == "+" and (not before or before[-1] in "=({[,|") else sign) + piece
        items.append(text)
    return items
