"""The cheap match: numbers, and lists, sets, tuples and intervals of them, exactly, and nothing evaluated."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from openrlhf_shear.rewards.maths.numbers import Number, read_number
from openrlhf_shear.rewards.maths.text import squeeze

_MOST_ITEMS = 64
_DEEPEST = 4

_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|notin|subset)(?![A-Za-z])")
_EQUALS = re.compile(r"=|\\(?:approx|in)(?![A-Za-z])")
_NAME = re.compile(
    r'(?:"[A-Za-z]++"|\\(?:alpha|beta|gamma|theta|lambda|mu|phi|varphi|omega|sigma|rho|ell|Delta)|[A-Za-z])'
    r"(?:_(?:\{[^{}]*+\}|[0-9A-Za-z]))?+'*+(?:\([A-Za-z,]*+\))?+|\\angle[A-Z_{}0-9]++|[A-Z]{2,3}"
)
_ABOUT = re.compile(r"\\approx(?![A-Za-z])")
_PIECE = re.compile(
    r'\\[{}]|\\[A-Za-z]++|\\.|[()\[\]{},;]|"(?:and|or)"|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])', re.DOTALL
)
_SEPARATORS = (",", ";", '"and"', '"or"', "and", "or")
_OPENING, _CLOSING = ("(", "[", "{", r"\{"), (")", "]", "}", r"\}")


@dataclass(frozen=True)
class Text:
    """Anything else, squeezed: compared as text, and undecided where the texts differ."""

    text: str
    name: str = ""


@dataclass(frozen=True)
class Group:
    """Items in `brackets`, one of "()", "[]", "[)", "(]", "{}" for a set, "" for a bare list."""

    brackets: str
    items: "tuple[Value, ...]"
    name: str = ""


Value = Number | Text | Group


def read(text: str, depth: int = 0) -> Value:
    """The value of a tidy text (see `text.tidy`). Never raises."""
    text = text.strip()
    if (number := read_number(text)) is not None:
        return number
    if depth < _DEEPEST:
        items, inner, (name, rest) = _split(text), _inside(text), without_name(text)
        if 1 < len(items) <= _MOST_ITEMS:
            return Group("", tuple(read(item, depth + 1) for item in items))
        if rest != text:
            return replace(read(rest, depth + 1), name=name)
        if inner is not None:
            brackets, items = inner
            if len(items) == 1 and brackets == "()":
                return read(items[0], depth + 1)
            if brackets == "{}" or 1 < len(items) <= _MOST_ITEMS:
                return Group(brackets, tuple(read(item, depth + 1) for item in items))
    return Text(squeeze(text).removeprefix("+"))


def without_name(text: str) -> tuple[str, str]:
    r"""What one value is said to be, and the value: `x = 2` is 2, and so are `1+1=2` and `f(x)=3-1=2`.

    An equation that says more, such as x^2=4, is left alone; so are lists and inequalities.

    >>> without_name("x_1 = 5"), without_name("2y = 10")
    (('x_1', '5'), ('', '2y = 10'))
    """
    parts = _EQUALS.split(text)
    if len(parts) == 1 or not parts[-1].strip() or _RELATION.search(text) or len(_split(text)) > 1:
        return "", text
    left = parts[0].replace(" ", "")
    if _NAME.fullmatch(left):
        return "" if '"' in left else left, parts[-1].strip()
    if re.search(r"(?<![A-Za-z\\])[A-Za-z]", left):
        return "", text
    exact = parts[0].strip() if _ABOUT.search(text) else ""  # of 2\sqrt{2} \approx 2.83
    return "", exact or parts[-1].strip()


def same(gold: Value, answer: Value, tolerance: Fraction | None = None) -> bool | None:
    """Is it the same answer? None: not to be decided here.

    Sets and bare lists compare in any order, tuples in order, intervals with their brackets. A percentage equals the
    bare number (10% is 10 and also 1/10). A unit may be missing on one side, else it must be the same.
    """
    if gold.name and answer.name and gold.name != answer.name:
        return False if _settled(gold) and _settled(answer) else None
    gold, answer = _unwrapped(gold), _unwrapped(answer)
    if isinstance(gold, Group) and isinstance(answer, Group):
        return _same_group(gold, answer, tolerance)
    if isinstance(gold, Number):
        return _same_number(gold, answer, tolerance) if isinstance(answer, Number) else False
    if isinstance(gold, Text) and isinstance(answer, Text):
        if gold.text == answer.text:
            return bool(gold.text) or None
        return False if len(gold.text) == len(answer.text) == 1 else None
    return False if isinstance(gold, Group) and isinstance(answer, Number) else None


def _same_number(gold: Number, answer: Number, tolerance: Fraction | None) -> bool:
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if answer.unit != gold.unit and answer.rescaled:
        return False  # but 52 may answer a question that names the base
    near = tolerance or 0
    if abs(gold.value - answer.value) <= near:
        return True
    if gold.percent == answer.percent:
        return False
    per_cent = 100 * gold.value if gold.percent else gold.value
    return abs(per_cent - (100 * answer.value if answer.percent else answer.value)) <= near


def _same_group(gold: Group, answer: Group, tolerance: Fraction | None) -> bool | None:
    # `x=1, y=2` is no set: an answer without names must keep the order.
    names, kinds = {item.name for item in gold.items}, {gold.brackets, answer.brackets}
    by_name = len(names) > 1 and not all(item.name for item in answer.items)
    if kinds <= {"", "{}"} and not by_name:
        return _same_set(gold.items, answer.items, tolerance)
    in_order = by_name or len(kinds) == 1 or kinds == {"", "()"}
    if not in_order or len(gold.items) != len(answer.items):
        return False if _settled(gold) and _settled(answer) else None
    equal = [same(g, a, tolerance) for g, a in zip(gold.items, answer.items, strict=True)]
    return False if False in equal else None if None in equal else True


def _same_set(gold: tuple[Value, ...], answer: tuple[Value, ...], tolerance: Fraction | None) -> bool | None:
    """As sets; with multiplicities where the gold repeats an item (`16,3,1,1`)."""
    if not gold or not answer:
        return not gold and not answer
    table = [[same(g, a, tolerance) for a in answer] for g in gold]
    repeats = any(same(g, h) for i, g in enumerate(gold) for h in gold[:i])
    if all(True in row for row in table) and all(True in column for column in zip(*table, strict=True)):
        return len(gold) == len(answer) if repeats else True
    return None if any(None in row for row in table) else False


def _settled(value: Value) -> bool:
    return isinstance(value, Number) or (isinstance(value, Group) and all(map(_settled, value.items)))


def _unwrapped(value: Value) -> Value:
    """A set of one is its element."""
    while isinstance(value, Group) and len(value.items) == 1 and value.brackets in ("", "{}"):
        value = value.items[0]
    return value


def _levels(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """The brackets, commands and separators of a text, each with the brackets that are open after it."""
    depth = 0
    for piece in _PIECE.finditer(text):
        depth += (piece[0] in _OPENING) - (piece[0] in _CLOSING)
        yield piece, depth


def _split(text: str) -> list[str]:
    """At the commas, semicolons, "and" and "or" that no bracket holds. One item where brackets do not match."""
    items, start, depth = [], 0, 0
    for piece, depth in _levels(text):
        if depth < 0:
            break
        if depth == 0 and piece[0] in _SEPARATORS:
            items.append(text[start : piece.start()].strip())
            start = piece.end()
    items.append(text[start:].strip())
    return [item for item in items if item] if depth == 0 else [text]


def _inside(text: str) -> tuple[str, list[str]] | None:
    """The outer brackets of a text and what they hold; None if it is not one bracket."""
    closing = next((piece for piece, depth in _levels(text) if depth == 0), None)
    if closing is None or closing.end() != len(text):
        return None
    first = r"\{" if text.startswith(r"\{") else text[0]
    brackets = first[-1] + closing[0][-1]
    if brackets not in ("()", "[]", "[)", "(]", "{}") or first == "{":
        return None
    return brackets, _split(text[len(first) : closing.start()])
