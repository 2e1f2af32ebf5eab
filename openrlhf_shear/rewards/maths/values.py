"""The cheap match: numbers, and lists, sets, tuples and intervals of them, compared exactly. Nothing is evaluated."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

import regex as re

from openrlhf_shear.rewards.maths.numbers import Number, read_number
from openrlhf_shear.rewards.maths.splitting import GREEK, LETTER, SEPARATORS, inside, split
from openrlhf_shear.rewards.maths.text import ABOUT, squeeze

_MOST_ITEMS = 64
_DEEPEST = 4

_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|notin|subset)(?![A-Za-z])")
_PLACE = r"\((?:(?:[A-Za-z]|\\[a-z]++)(?:,[A-Za-z])*+)?\)|(?<=[fghpqFGHPQ]|\^\{-1\})\(-?[0-9]++(?:,-?[0-9]++)*+\)"
_MARKED = rf"\\(?:hat|widehat|bar|overline|tilde|vec|dot|ddot|overrightarrow)(?:\{{(?:{LETTER}|[A-Z]{{2}})\}}|{LETTER})"
_DERIVATIVE = r"\\frac\{(?:d|\\partial)(?:\^[23])?[A-Za-z]?\}\{(?:d|\\partial)[A-Za-z](?:\^[23])?\}"
_VARIABLE = (
    rf"(?:[A-Z]{{2,3}}|m?\\angle[A-Z_{{}}0-9]++|\\(?:max|min)|\\Delta[A-Za-z]|{_MARKED}|\\sigma\^(?:\{{[0-9]\}}|[0-9])"
    rf"|{_DERIVATIVE}(?:{LETTER}(?:{_PLACE})?+)?+|{LETTER}\^\{{-1\}}(?:{_PLACE})"
    rf"|{LETTER}(?:\^(?:\*|\{{\*\}}|\\ast|\{{\\ast\}}|\\star|\{{\\star\}}))?+(?:{_PLACE})?+)"
)
_WORD_NAME = re.compile(r'(?:"[A-Za-z]++(?: [A-Za-z]++)*+"|[A-Z][a-z]{2,}+|[a-z]{4,}+)(?: ?\([^()=]{1,20}\))?+')
_NAME = re.compile(
    rf"{_VARIABLE}(?::{_VARIABLE})*+|\|{_VARIABLE}\||\\\|{_VARIABLE}\\\||\\(?:lim|sum|prod|int|max|min|sup|inf)_.*"
)
_NAMES = re.compile(rf"\({_VARIABLE}(?:,{_VARIABLE})++\)")
_MARK = re.compile(r"\\(?:hat|widehat|bar|overline|tilde|vec|dot|ddot|overrightarrow)(?:\{(.*?)\}|(.))")
_DIFFERENTIAL = re.compile(r"\\frac\{d(?:\^([23]))?([A-Za-z]?)\}\{d[A-Za-z](?:\^[23])?\}([A-Za-z]?)")
_RUNS = ("abcdefgh", "ijk", "mn", "pqrstuvwxyz", "ABCDEFGH", "PQRSTUVWXYZ")  # letters whose order is the alphabet's
_TIME = re.compile(r"0?([0-9]{1,2}:0[0-9])")  # 10:05 is no ratio
_INDEX = re.compile(r"_(?:\{[0-9]+\}|[0-9])$")
_LETTERS = re.compile(rf"(?<![A-Za-z\\])[A-Za-z]|{GREEK}")
_ARGUMENT = re.compile(r"\([a-z]\)$")  # of a constant function
_WORD = re.compile(r"[A-Z]{3,}")  # the order of points or runners, and no product
_ENDS = {r"\infty": math.inf, r"-\infty": -math.inf}
_NOTHING = re.compile(
    r"\\emptyset|(?:there(?:is|are))?no(?:real|integer|such)?(?:solutions?|roots?|values?)(?:exists?)?|(?:the)?emptyset|none"
)
_CONGRUENCE = re.compile(
    r"(?:(?P<name>.+?)\\equiv)?(?P<rest>.+?)\(?(?:\\mod(?![a-z])|mod(?=\d))\{?(?P<modulus>[0-9]+)\}?\)?"
)


@dataclass(frozen=True)
class Text:
    """Any other answer, squeezed. It is compared as text, and undecided if the texts differ."""

    text: str
    name: str = ""


@dataclass(frozen=True)
class ValueGroup:
    r"""Items in `brackets`: "()", "[]", "[)", "(]", "{}" for a set, "" for a bare list; ":" a ratio, "\cup" a union.

    "mod 4" has the residues of a congruence.
    """

    brackets: str
    items: "tuple[Value, ...]"
    name: str = ""


Value = Number | Text | ValueGroup


def read_value(text: str, depth: int = 0) -> Value:
    """Return the value of a tidy text (see `text.tidy`). Never raises."""
    text = text.strip()
    if (number := read_number(text)) is not None:
        return number
    if time := _TIME.fullmatch(text):
        return Text(time[1])
    if _NOTHING.fullmatch(squeeze(text).lower()):
        return ValueGroup("{}", ())
    if (residues := congruence(text)) is not None:
        return residues
    if depth < _DEEPEST:
        for brackets, separators in (("", SEPARATORS), (r"\cup", (r"\cup",))):
            if 1 < len(items := split(text, separators)) <= _MOST_ITEMS:
                return ValueGroup(brackets, tuple(read_value(item, depth + 1) for item in items))
        name, rest = without_name(text)
        if rest != text:
            return _named(read_value(rest, depth + 1), name)
        if 1 < len(items := split(text, (":",))) <= _MOST_ITEMS:
            return ValueGroup(":", tuple(read_value(item, depth + 1) for item in items))
        if (held := inside(text)) is not None:
            brackets, items = held
            if len(items) == 1 and brackets == "()":
                return read_value(items[0], depth + 1)
            if brackets == "{}" or 1 < len(items) <= _MOST_ITEMS:
                return ValueGroup(brackets, tuple(read_value(item, depth + 1) for item in items))
    return Text(squeeze(text).removeprefix("+"))


def congruence(text: str) -> ValueGroup | None:
    r"""Return the residues of a congruence: those of `n \equiv 1,5 \mod 4` are 1. They are `reduced` if written so."""
    match = _CONGRUENCE.fullmatch(squeeze(text))
    numbers = [read_number(item) for item in split(match["rest"])] if match and int(match["modulus"]) else [None]
    if not all(number is not None and number.value.denominator == 1 for number in numbers):
        return None
    modulus = int(match["modulus"])
    residues = {number.value % modulus for number in numbers}
    reduced = all(0 <= number.value < modulus for number in numbers)
    items = tuple(Number(residue, reduced=reduced) for residue in sorted(residues))
    return ValueGroup(f"mod {modulus}", items, name=match["name"] or "")


def _named(value: Value, name: str) -> Value:
    """Name a value; `(x,y)` names the items of a pair."""
    if not name.startswith("("):
        return replace(value, name=_ARGUMENT.sub("", name) if isinstance(value, Number) else name)
    names = split(name[1:-1], (",",))
    if not isinstance(value, ValueGroup) or len(names) != len(value.items):
        return value
    pairs = zip(value.items, names, strict=True)
    return replace(value, items=tuple(_named(item, item_name) for item, item_name in pairs))


def without_name(text: str) -> tuple[str, str]:
    r"""Return the name that a text gives a value, and the value.

    The value of `x = 2` is 2, and so are those of `2 = x`, `1+1=2` and `f(x)=3-1=2`. An equation that says more, such
    as x^2=4, stays unchanged, as do lists and inequalities. Of `x = 1/3 \approx 0.33`, the exact part counts.

    >>> without_name("x_1 = 5"), without_name("2y = 10")
    (('x_1', '5'), ('', '2y = 10'))
    """
    if _RELATION.search(text) or len(split(text)) > 1:
        return "", text
    exact, *about = (part.strip() for part in ABOUT.split(text))
    parts = split(exact, ("=", r"\in"))
    if not parts or exact.endswith("="):
        return "", about[-1] if about and not parts else text
    if len(parts) == 1 and about:  # x \approx 8, 2\sqrt{2} \approx 2.83
        name = _name(exact)
        return ("", exact) if name is None else (name, about[-1])
    if len(parts) == 1:
        return "", parts[0] if exact.startswith("=") else text
    if (name := _name(parts[0])) is not None:
        return name, parts[-1]
    if len(parts) == 2 and (name := _name(parts[1])) is not None:
        return name, parts[0]
    says_more = _LETTERS.search(parts[0]) or (_LETTERS.search(parts[-1]) and '"' not in parts[-1])
    return "", text if says_more else parts[-1]


def _name(text: str) -> str | None:
    r"""Return the name that a text is, with words in quotes, without its hat or bar; None if it is no name.

    A derivative gets a prime: `\frac{dy}{dx}` is y'.
    """
    if _WORD_NAME.fullmatch(text.strip()):
        return '"' + text.replace('"', "").strip().lower() + '"'
    text = text.replace(" ", "")
    if not (_NAME.fullmatch(text) or _NAMES.fullmatch(text)):
        return None
    text = _DIFFERENTIAL.sub(lambda match: (match[2] or match[3]) + "'" * int(match[1] or 1), text)
    return re.sub(r"([_^])\{(.)\}", r"\1\2", _MARK.sub(lambda match: match[1] or match[2], text))


def same(gold: Value, answer: Value, tolerance: Fraction | None = None) -> bool | None:
    """Return whether the answer is the gold; None if this match cannot decide.

    Sets and bare lists compare in any order, tuples in order, intervals with their brackets. A percentage equals the
    bare number (10% is 10 and also 1/10). A unit may be missing on one side, but two units must be the same.
    """
    if gold.name and answer.name and gold.name != answer.name and '"' not in gold.name + answer.name:
        return False if _settled(gold) and _settled(answer) else None
    gold, answer = _unwrapped(gold), _unwrapped(answer)
    if isinstance(gold, ValueGroup) and isinstance(answer, ValueGroup):
        return _same_group(gold, answer, tolerance)
    if isinstance(gold, Number):
        answer = _quotient(answer) or answer
        return _same_number(gold, answer, tolerance) if isinstance(answer, Number) else False
    if isinstance(gold, Text) and isinstance(answer, Text):
        if gold.text == answer.text:
            return bool(gold.text) or None
        words = _WORD.fullmatch(gold.text) and _WORD.fullmatch(answer.text)
        return False if words or len(gold.text) == len(answer.text) == 1 else None
    if isinstance(gold, ValueGroup) and gold.brackets == ":":
        return same(_quotient(gold), answer, tolerance) if _quotient(gold) else None
    time = isinstance(gold, Text) and _TIME.fullmatch(gold.text)
    return False if time or (isinstance(gold, ValueGroup) and isinstance(answer, Number)) else None


def _same_number(gold: Number, answer: Number, tolerance: Fraction | None) -> bool:
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if answer.unit != gold.unit and answer.rescaled:
        return False  # the other way round, 52 may answer a question that names the base
    if gold.reduced and not answer.reduced:
        return False  # 84/144 was the question
    near = tolerance or 0
    if abs(gold.value - answer.value) <= near:
        return True
    if gold.percent == answer.percent:
        return False
    per_cent = 100 * gold.value if gold.percent else gold.value
    return abs(per_cent - (100 * answer.value if answer.percent else answer.value)) <= near


def _same_group(gold: ValueGroup, answer: ValueGroup, tolerance: Fraction | None) -> bool | None:
    kinds = {gold.brackets, answer.brackets}
    if any(kind.startswith("mod") for kind in kinds):
        return len(kinds) == 1 and [item.value for item in gold.items] == [item.value for item in answer.items]
    if r"\cup" in kinds and None not in (unions := (_union(gold), _union(answer))):
        return unions[0] == unions[1]
    if kinds == {r"\cup"}:
        return _same_set(gold.items, answer.items, tolerance) or None  # a worker compares sets that overlap
    common = [{_INDEX.sub("", item.name) for item in group.items} for group in (gold, answer)]
    if all(len(names) == 1 and "" not in names for names in common) and common[0] != common[1]:
        return False if _settled(gold) and _settled(answer) else None
    if kinds == {"", "()"} and any(getattr(item, "text", None) in _ENDS for item in gold.items):
        return False  # an interval
    same_names = len(_names(gold)) > 1 and _names(gold) == _names(answer)
    if kinds <= {"", "{}"} and _one_name(gold) and _one_name(answer) and not same_names:
        return _same_set(_nameless(gold.items), _nameless(answer.items), tolerance)
    # `x=1, y=2` is no set: its names give its order. An answer without names must keep the written order of the gold.
    if "{}" in kinds and kinds & {"()", "[]", "[)", "(]"}:
        return False  # a set is no tuple and no interval, whatever its items are
    bare = {item.name for group in (gold, answer) if not group.brackets for item in group.items}
    if kinds == {"", "()"} and len(bare) == 1 and "" not in bare:
        return False  # x=-3, x=3 are two values of one variable, and no pair or interval
    by_name = same_names or not _one_name(gold) or not _one_name(answer)
    in_order = by_name or len(kinds) == 1 or kinds == {"", "()"}
    if not in_order or len(gold.items) != len(answer.items):
        brackets = kinds & {"[]", "[)", "(]"} and not kinds & {":", r"\cup"}  # whatever is in them
        return False if (_settled(gold) and _settled(answer)) or brackets else None
    written = [(_nameless(gold.items), _nameless(answer.items))]
    if same_names:
        written = [(_sorted(gold).items, _sorted(answer).items)]
    elif by_name and all(item.name for item in (*gold.items, *answer.items)):
        written = [(gold.items, answer.items)]
    elif by_name and _one_name(gold):
        if any(all(name[:1] in run for name in _names(answer)) for run in _RUNS):
            written = [(_nameless(gold.items), _nameless(_sorted(answer).items))]
        if gold.brackets == "" and not any(item.name for item in gold.items):
            written.append((gold.items, _nameless(answer.items)))  # 16, 3 are also w=16, d=3
    verdicts = [_same_items(*pair, tolerance) for pair in written]
    return True if True in verdicts else None if None in verdicts else False


def _same_items(gold: "tuple[Value, ...]", answer: "tuple[Value, ...]", tolerance: Fraction | None) -> bool | None:
    equal = [same(g, a, tolerance) for g, a in zip(gold, answer, strict=True)]
    return False if False in equal else None if None in equal else True


def _one_name(group: ValueGroup) -> bool:
    """Return whether the items are values of a single variable: `2, 3`, `x=2, x=3`, `x_1=2, x_2=3`."""
    return len({_INDEX.sub("", item.name) for item in group.items}) == 1


def _nameless(items: "Iterable[Value]") -> "tuple[Value, ...]":
    return tuple(replace(item, name="") for item in items)


def _sorted(group: ValueGroup) -> ValueGroup:
    return replace(group, items=tuple(sorted(group.items, key=lambda item: (item.name, str(item)))))


def _names(group: ValueGroup) -> set[str]:
    return {item.name for item in group.items}


def _union(group: ValueGroup) -> list[tuple] | None:
    """Return the intervals of a union, joined where they touch; None if an end is no number.

    An end is a number and whether it lies beyond it: (2, 0) ends before 2 or starts at 2.
    """
    ends = []
    for item in group.items if group.brackets == r"\cup" else (group,):
        values = [_ENDS.get(end.text) if isinstance(end, Text) else end for end in getattr(item, "items", ())]
        values = [end.value if isinstance(end, Number) else end for end in values]
        if not values or None in values or item.brackets not in ("()", "[]", "[)", "(]", "{}"):
            return None
        if item.brackets == "{}":
            ends += [((value, 0), (value, 1)) for value in values]
        elif len(values) != 2 or not values[0] < values[1]:
            return None
        else:
            ends.append(((values[0], int(item.brackets[0] == "(")), (values[1], int(item.brackets[1] == "]"))))
    joined = []
    for low, high in sorted(ends):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return joined


def _quotient(value: Value) -> Number | None:
    """Return the fraction that a ratio of two numbers is."""
    if not isinstance(value, ValueGroup) or value.brackets != ":" or len(value.items) != 2:
        return None
    above, below = value.items
    if not (isinstance(above, Number) and isinstance(below, Number) and below.value):
        return None
    whole = above.reduced and below.reduced and above.value.denominator == below.value.denominator == 1
    reduced = whole and math.gcd(above.value.numerator, below.value.numerator) == 1  # 144:12 is a question
    return replace(above, value=above.value / below.value, reduced=reduced)


def _same_set(gold: tuple[Value, ...], answer: tuple[Value, ...], tolerance: Fraction | None) -> bool | None:
    """Compare as sets; with multiplicities if the gold repeats an item (`16,3,1,1`)."""
    if not gold or not answer:
        return not gold and not answer
    table = [[same(g, a, tolerance) for a in answer] for g in gold]
    repeats = any(same(g, h) for i, g in enumerate(gold) for h in gold[:i])
    if all(True in row for row in table) and all(True in column for column in zip(*table, strict=True)):
        return len(gold) == len(answer) if repeats else True
    return None if any(None in row for row in table) else False


def _settled(value: Value) -> bool:
    return isinstance(value, Number) or (isinstance(value, ValueGroup) and all(map(_settled, value.items)))


def _unwrapped(value: Value) -> Value:
    """Return the element of a set or list with a single item; other values stay unchanged."""
    while isinstance(value, ValueGroup) and len(value.items) == 1 and value.brackets in ("", "{}"):
        value = value.items[0]
    return value
