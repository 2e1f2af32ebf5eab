"""A whitelist for the part of a model's text that may reach math-verify: characters, LaTeX commands and sizes."""

from itertools import accumulate

import regex as re

from openrlhf_shear.rewards.maths.text import COMMAND, WORDS
from openrlhf_shear.rewards.verdict import Reason

_CHARACTERS = re.compile(r"[A-Za-z0-9 +\-*/^_=<>!|.,:;()\[\]{}\\&%]*+")
_FORBIDDEN = re.compile(r"__|\*\*|\.(?![0-9])|[A-Za-z)\]}]\.|(?<![A-Za-z\\])[A-Za-z]{5,}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*+\{([^{}]*+)\}")
_BASE = re.compile(r"\\l[ng]\s*+_")  # \ln has no other base
_SET = re.compile(r"\\mathbb\s*+\{?[RZNQC]\b\}?")

_FUNCTIONS, _PLAIN = (set(WORDS["names"][kind].split()) for kind in ("functions", "plain"))
_MATRICES = {"matrix", "pmatrix", "bmatrix", "vmatrix", "smallmatrix", "array", "cases"}

_LONGEST_DIGITS = 40
_DEEPEST_BRACES = 30
_SPARE_LENGTH = 200
_DIGITS = re.compile(rf"[0-9]{{{_LONGEST_DIGITS + 1},}}")
_TOO_LARGE = re.compile(  # exponents and choices from 10^4 on, factorials from 1000!, towers of four numbers
    r"\^\s*+(?:\{\s*+)?[+-]?\s*+[0-9]{5,}|[0-9]{4,}+[\s)}]*+!|\\binom\s*+\{[^{}]*?(?:[0-9]{5,}|\^)|[0-9][eE][+-]?[0-9]{4,}"
    r"|[0-9](?:\s*+\^\s*+\{?\s*+[0-9]++){3}"
)
_SAME_FUNCTIONS = {
    **{"ln": "log", "lg": "log", "!": "binom", "lceil": "lfloor", "rceil": "rfloor", "lcm": "gcd"},
    **dict.fromkeys(("max", "min", "sgn", "cases"), "|"),
}


def refusal(answer: str, gold: str) -> Reason | None:
    r"""Return why a tidy answer does not go to math-verify for this tidy gold; None if it does.

    UNEVALUATED: it has operations that the gold does not use: sums over an index, products, integrals, limits,
    determinants, named functions. (`inside/worked.py` finds other unfinished work in the tree.)
    """
    if not readable(answer, commands(gold)):
        return Reason.UNEVALUATED if readable(answer, commands(answer)) else Reason.UNREADABLE
    depths = accumulate((character in "{([") - (character in "})]") for character in answer)
    digits_or_powers = any(large.search(answer) and not large.search(gold) for large in (_DIGITS, _TOO_LARGE))
    too_long = len(answer) > 4 * len(gold) + _SPARE_LENGTH
    if too_long or digits_or_powers or max(depths, default=0) > _DEEPEST_BRACES:
        return Reason.TOO_LARGE
    known = _functions(gold) | ({"|"} if r"\sqrt" in gold else set())  # \sqrt{x^2} is |x|
    return None if _functions(answer) <= known else Reason.UNEVALUATED


def readable(text: str, more: frozenset[str] = frozenset()) -> bool:
    """Return whether a text has only characters and commands of the whitelist, or of `more`."""
    return (
        _CHARACTERS.fullmatch(text) is not None
        and _FORBIDDEN.search(COMMAND.sub(" ", _ENVIRONMENT.sub(" ", text))) is None
        and commands(text) <= _PLAIN | _FUNCTIONS | more
        and {match[1] for match in _ENVIRONMENT.finditer(text)} <= _MATRICES
        and not _BASE.search(text)
        and text.count(r"\mathbb") == len(_SET.findall(text))
    )


def commands(text: str) -> frozenset[str]:
    """Return the names of the LaTeX commands, without their backslash."""
    return frozenset(match[1] for match in COMMAND.finditer(text))


def has_variables(gold: str) -> bool:
    """Return whether a gold has letters besides e and i that are no command."""
    named = commands(gold) & {"theta", "alpha", "beta", "phi", "lambda", "mu"}
    return bool(named or re.search(r"[A-DF-Za-df-hj-z]", COMMAND.sub(" ", _ENVIRONMENT.sub(" ", gold))))


def _functions(text: str) -> set[str]:
    """Return the operations that a text applies: named functions, factorials, absolute values and determinants."""
    names = (commands(text) & _FUNCTIONS) | ({"!", "|"} & set(text)) | ({"vmatrix"} & set(_ENVIRONMENT.findall(text)))
    return {_SAME_FUNCTIONS.get(name, name) for name in names}
