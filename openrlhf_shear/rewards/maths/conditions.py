r"""Conditions after an answer: `where k\in\mathbb{Z}`, `when y=3`, `for all x`."""

from dataclasses import dataclass

import regex as re

from openrlhf_shear.rewards.maths.numbers import read_number
from openrlhf_shear.rewards.maths.splitting import LETTER, split
from openrlhf_shear.rewards.maths.text import squeeze

_WORDS = re.compile(
    r'[,;]?\s*+\(?\s*+(?:"|(?<=[\s,;(]))(?:where|when(?:ever)?|for|if|such that|provided)(?=[\s"\\])'
    r"|[,;]?\s*+\(?\\forall(?![A-Za-z])"
)
_REACHED = "attained|achieved|reached|occurring|occurs"
_BESIDE = "at|with|given|by|from|using|taking|letting|assuming|on"
_LATER = re.compile(  # words after a value: 54 because 50+5=55, 9 attained at x=4, 7 with x=3
    rf"""[,;]?\s*+\(?\s*+(?:"|(?<=[\s,;(]))(?:(?P<reason>because|since|as|which)(?=[\s":])|(?:{_REACHED})(?=[\s"])"""
    rf"""|(?P<aside>(?<=[0-9}}]\s)\((?=[^()]*=[^()]*\)$))|(?:{_BESIDE})(?=[\s"][^=<>]*[=<>]))(?:\s*+at(?=[\s"]))?+"""
)
_SO = re.compile(r'[,;.]?\s*+(?:"|(?<=[\s,;]))(?:so|hence|thus|therefore|then)(?=[\s",])"?[\s,]*+')
_GIVEN = re.compile(rf"{LETTER}\s*+=[^=]++")
_VALUE = re.compile(r"[0-9]|\\pi|\\sqrt|\\infty|=")
_DOMAIN = re.compile(
    rf"(?:[,;]|\()\s*+(?P<names>{LETTER}(?:\s*,\s*{LETTER})*+)\s*+"
    r'(?:\\in(?![A-Za-z])|"?(?:is|are)\b|"?(?:an?|any) (?:integer|whole|natural|real|positive|nonneg))'
)
_PIECES = re.compile(r"(?<![A-Za-z])(?:otherwise|else)(?![A-Za-z])")
_SETS = {  # by what their names hold; the first that fits
    "natural": re.compile(
        r"\\mathbb\s*\{?N|natural|(?:positive|nonnegative|non-negative) (?:integer|whole)|\\mathbb\s*\{?Z\}?[_^]"
    ),
    "integer": re.compile(r"\\mathbb\s*\{?Z|integer|whole|\\in\s*Z(?![A-Za-z])"),
    "real": re.compile(r"\\mathbb\s*\{?R|\breals?\b|\\in\s*R(?![A-Za-z])"),
    "rational": re.compile(r"\\mathbb\s*\{?Q|rational"),
    "complex": re.compile(r"\\mathbb\s*\{?C|complex"),
}
_NUMBER = re.compile(r"[-+0-9., ]*+")
_NAME = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_SAYS = re.compile(r"[0-9=<>|]|\\(?!forall|in|quad)[a-z]+|\b(?:odd|even|prime|positive|negative|nonzero)\b")


@dataclass(frozen=True)
class Condition:
    """A condition: the set of its variables if it names one, its variables, and its text where that says more."""

    kind: str = ""
    names: frozenset[str] = frozenset()
    text: str = ""


def without_condition(text: str) -> tuple[str, Condition | None]:
    r"""Return a tidy text without the condition at its end, and the condition; pieces with conditions stay unchanged.

    >>> without_condition(r'x=2k "where" k\in \mathbb{Z}')[0], without_condition(r"k\pi , k \in \mathbb{Z}")[0]
    ('x=2k', 'k\\pi')
    """
    if text.upper() == text.lower() and "=" not in text:  # no letters, quickly
        return text, None
    value, _, check = text.partition(": ")
    if "=" in check and read_number(value) is not None:  # 21: 16+5=21
        return value, None
    value, *equations = split(text, (",", ";")) if "=" in text else [text]
    if equations and read_number(value) is not None and all(map(_GIVEN.fullmatch, equations)):  # 10, n=5
        return value, Condition(text=squeeze(",".join(equations)))
    found, later = [*_WORDS.finditer(text)], _LATER.search(text)
    if later and not (found and found[0].start() < later.start()):
        before = text[: later.start()].strip()
        if _VALUE.search(before) and _closed(before):
            condition = Condition(text=squeeze(text[later.end() :].strip('" )')))
            return without_condition(before)[0], None if later["reason"] or later["aside"] else condition
    place = found[0].start() if len(found) == 1 and not _PIECES.search(text) else None
    if not found:
        domain = next((match for match in _DOMAIN.finditer(text) if _uses(text[: match.start()], match["names"])), None)
        place = domain.start() if domain else None
    if not place or not _closed(value := text[:place].strip().rstrip(",;").strip()):
        return text, None
    condition = text[(found[0] if found else domain).end() :] if found else text[place:]
    condition = condition.strip().strip('"').strip()
    return (text, None) if _NUMBER.fullmatch(condition) else (value, _condition(condition))  # 2 for 1


def concluded(text: str) -> str:
    """Return the equation that a tidy text concludes from others.

    >>> concluded('2x=10 "so" x=5'), concluded("x = 5 so far")
    ('x=5', 'x = 5 so far')
    """
    *_, last = [None, *(_SO.finditer(text) if text.count("=") > 1 else ())]
    return text[last.end() :] if last and "=" in text[: last.start()] and "=" in text[last.end() :] else text


def agree(gold: Condition | None, answer: Condition | None) -> bool:
    """Return whether two conditions do not contradict. A condition may be missing."""
    if gold is None or answer is None or gold == answer:
        return True
    if gold.kind and answer.kind:
        return gold.kind == answer.kind and gold.text == answer.text
    return not (gold.text and answer.text)


def renamed(answer: str, condition: Condition | None, gold: Condition | None) -> str:
    """Return an answer with its free integer called as in the gold: `2n` is `2k` where both may be any integer."""
    if condition is None or gold is None or not gold.kind or len(gold.names) != 1 or len(condition.names) != 1:
        return answer
    (old,), (new,) = condition.names, gold.names
    return answer if old == new else re.sub(rf"(?<![A-Za-z\\]){old}(?![A-Za-z])|(?<=[0-9]){old}", new, answer)


def _condition(condition: str) -> Condition:
    kind = next((name for name, pattern in _SETS.items() if pattern.search(condition)), "")
    names = frozenset(
        _NAME.findall(re.sub(r"\\mathbb\s*\{?[A-Z]\}?|\\[a-z]+|[A-Za-z]{2,}", " ", condition)) if kind else ()
    )
    rest = condition
    for pattern in _SETS.values():
        rest = pattern.sub(" ", rest)
    says_more = _SAYS.search(rest)
    return Condition(kind, names - set("ZRQNC"), squeeze(condition) if says_more else "")


def _uses(value: str, names: str) -> bool:
    letters = _NAME.findall(names)
    return any(re.search(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])|(?<=[0-9]){letter}", value) for letter in letters)


def _closed(text: str) -> bool:
    """Return whether a text has matching brackets, so that it does not end within one."""
    matched = all(text.count(opening) == text.count(end) for opening, end in ("()", "{}"))
    return bool(text) and matched and not text.endswith((r"\mid", "|"))
