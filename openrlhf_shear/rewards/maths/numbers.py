r"""Exact rational numbers as people write them, with their units and percent signs. Nothing is evaluated."""

from dataclasses import dataclass
from fractions import Fraction

import regex as re

from openrlhf_shear.rewards.maths.text import WORDS, meant, squeeze

_LONGEST_NUMBER = 300
_PLAIN = r"(?:[0-9]{1,3}(?:[, ][0-9]{3}){1,99}+(?![0-9])|[0-9]++)(?:\.[0-9]*+)?+|\.[0-9]++"
_POWER = r"10\^(?:\{(?P<power>[+-]?[0-9]{1,3})\}|(?P<digit>[0-9]))"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)(?:"
    rf"\\frac\{{(?P<top>[+-]?(?:{_PLAIN}))\}}\{{(?P<bottom>[+-]?(?:{_PLAIN}))\}}|"
    rf"(?P<whole>[0-9]+)(?:\\frac\{{(?P<num>[0-9]+)\}}\{{(?P<den>[0-9]+)\}}| (?P<num2>[0-9]+)/(?P<den2>[0-9]+))|"
    rf"(?P<a>{_PLAIN})/(?P<b>{_PLAIN})|"
    rf"(?P<fixed>[0-9]*\.[0-9]*)\\overline\{{(?P<cycle>[0-9]+)\}}|"
    rf"(?P<scaled>{_PLAIN})(?:(?:\\times|\\cdot|\*){_POWER}|[eE](?P<e>[+-]?[0-9]{{1,3}}))|"
    rf"(?P<ten>{_POWER.replace('power', 'power2').replace('digit', 'digit2')})|"
    rf"(?P<plain>{_PLAIN}))"
)
_EACH = r"(?: ?(?:/|per(?![A-Za-z])) ?(?:s|sec|seconds?|h|hr|hours?|min|minutes?|days?|weeks?|months?|years?))?"
_KNOWN_UNIT = re.compile(
    rf"(?:(?:sq(?:uare)?|cubic) )?(?:{'|'.join(WORDS['names']['units'].split())}){_EACH}(?:\^(?:[23]|\{{[23]\}}))?$"
)
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_NOT_UNITS = set(WORDS["names"]["numerals"].split())
_UNITS = meant(WORDS["units"])
_IN_BRACKETS = r"(?|\(([+-]?[0-9.]++)\)|([+-]?[0-9.]++))"
_QUOTIENT = re.compile(  # 5/(-7), \frac{5}{(-7)}, -(\frac{5}{7})
    rf"(?|(?<=^[+-]?){_IN_BRACKETS}/{_IN_BRACKETS}$|\\frac\{{{_IN_BRACKETS}\}}\{{{_IN_BRACKETS}\}}"
    r"|(?<=^[+-])\(\\frac\{([0-9]++)\}\{([0-9]++)\}\)$|(?<=^[+-])\(([0-9]++)/([0-9]++)\)$)"
)
_BASED = re.compile(r"(-?[0-9]+)_(?:\{(-?[0-9]{1,2})\}|([0-9]))")


@dataclass(frozen=True)
class Number:
    """An exact number.

    Attributes:
        unit: the words of its unit.
        name: the name before the equals sign, if any.
        reduced: false for a fraction that is not in lowest terms, and for a recurring decimal.
    """

    value: Fraction
    percent: bool = False
    unit: frozenset[str] = frozenset()
    name: str = ""
    reduced: bool = True

    @property
    def rescaled(self) -> bool:
        """Whether the unit changes what the digits mean: 52_8 is not 52, nor 90 radians 90 degrees."""
        return any(word.startswith(("base", "radian")) for word in self.unit)


def read_number(text: str) -> Number | None:
    r"""Read an integer, decimal, `0.\overline{3}`, fraction, mixed number, percentage, `10^3` or `52_8`; units too."""
    if not 0 < len(text) <= _LONGEST_NUMBER or ", " in text:
        return None
    if based := _BASED.fullmatch(text.replace(" ", "")):
        return Number(Fraction(based[1]), unit=frozenset({"base" + (based[2] or based[3])}))
    text, unit, scale = split_unit(text)
    if unit is None:
        return None
    text = _QUOTIENT.sub(r"\\frac{\1}{\2}", squeeze(text)) if "(" in text else squeeze(text)
    percent = text.endswith("%") or "percent" in unit
    read = _fraction(text.rstrip("%"))
    if read is None:
        return None
    value, reduced = read
    return Number(value * scale / (100 if percent else 1), percent, unit - {"percent", ""}, reduced=reduced)


def split_unit(text: str) -> tuple[str, frozenset[str] | None, int]:
    """Split off a unit at the end. Return the text, the unit's words (None if they are no unit) and their factor."""
    power = re.search(r"\^(?:[23]|\{[23]\})$", text)
    end = len(text[: power.start() if power else None].rstrip())
    start = text.rfind('"', 0, end - 1) if text.endswith('"', 0, end) else -1
    if start < 0:
        letters = (match.start() for match in re.finditer(r"(?<![A-Za-z\\])[A-Za-z]", text))
        start = next((at for at in letters if _KNOWN_UNIT.match(text, at)), -1)
        if start < 0:
            return text, frozenset(), 1
    unit = text[start:end].lower().replace("per cent", "percent").replace("mph", "miles per hour")
    words = re.findall(r"[a-z]+", unit)
    if not words or _NOT_UNITS.intersection(words):
        return text, None, 1
    scale = 1
    while words and (factor := _SCALES.get(words[0].removesuffix("s"))):
        scale *= factor
        del words[0]
    singular = [w if w in _UNITS or len(w) < 3 else w.removesuffix("s") for w in words]
    unit = {_UNITS.get(word, word) for word in singular}
    if power:
        unit.add("^" + power[0].strip("^{}"))
    return text[:start], frozenset(unit - {""}), scale


def _fraction(text: str) -> tuple[Fraction, bool] | None:
    """Return the number, and whether it is written in lowest terms."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    part = match.groupdict()
    sign = -1 if part["sign"] == "-" else 1
    top, bottom = part["top"] or part["a"], part["bottom"] or part["b"]
    if part["whole"]:
        top, bottom = part["num"] or part["num2"], part["den"] or part["den2"]
    if bottom is not None:
        above, below = _plain(top), _plain(bottom)
        if below == 0 or (part["whole"] and not above < below):
            return None
        return sign * (Fraction(part["whole"] or 0) + above / below), (above / below).denominator == abs(below)
    if part["cycle"]:
        places = len(part["fixed"].partition(".")[2])
        cycle = Fraction(int(part["cycle"]), (10 ** len(part["cycle"]) - 1) * 10**places)
        return sign * (_plain("0" + part["fixed"]) + cycle), False
    power = part["power"] or part["digit"] or part["power2"] or part["digit2"] or part["e"] or "0"
    return sign * _plain(part["scaled"] or part["plain"] or "1") * Fraction(10) ** int(power), True


def _plain(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", ""))
