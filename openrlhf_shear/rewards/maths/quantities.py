r"""Equations that only say what a quantity is: `m+n=204`, `\frac{AB}{BC}=2`."""

import regex as re

from openrlhf_shear.rewards.maths.guard import has_variables
from openrlhf_shear.rewards.maths.splitting import split
from openrlhf_shear.rewards.maths.text import ABOUT, squeeze
from openrlhf_shear.rewards.maths.values import congruence

_COMMAND = re.compile(r"\\[A-Za-z]++")
_RAISED = re.compile(r"\^(?:\{[^{}]*+\}|.)")
_INDEXED = re.compile(r"[A-Za-z]_\{.*\}")
_LETTERS = re.compile(r"[A-Za-z]")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|in|notin|subset|equiv)(?![A-Za-z])")


def value_of(text: str, formulas: frozenset[str] = frozenset()) -> str:
    r"""Return the number that a tidy answer gives a quantity; any other text stays unchanged.

    An equation in one variable (`2x=10`, `x^2=4`) is not solved, so it gives nothing. Nor does an equation among the
    squeezed `formulas` of the question. The number of a congruence is its remainder.

    >>> value_of("m+n=204"), value_of(r"3^{x+2}=5 \cdot 9=45"), value_of("2x=10"), value_of(r"194 \equiv 7 \mod 11")
    ('204', '45', '2x=10', '7')
    """
    if r"\equiv" in text and squeeze(text) not in formulas:
        residues = congruence(text)
        single = residues is not None and len(residues.items) == 1 and residues.items[0].reduced
        return str(residues.items[0].value) if single else text
    quantity, value = _sides(text)
    if not value or _unsolved(quantity) or {squeeze(text), squeeze(f"{quantity}={value}")} & formulas:
        return text
    return value


def value_of_named(text: str) -> str:
    r"""Return the number that a gold gives a quantity of named points, lengths or areas; other texts stay unchanged.

    Small letters are variables: `xy=4` is a curve.

    >>> value_of_named(r"\frac{AB}{BC}=2"), value_of_named("xy=4")
    ('2', 'xy=4')
    """
    quantity, value = _sides(text)
    small = re.search(r"[a-z]", re.sub(r"_(?:\{[^{}]*+\}|.)", "", _COMMAND.sub(" ", quantity)))
    return text if not value or small else value


def _sides(text: str) -> tuple[str, str]:
    """Return the first and the last side of an equation whose last side is a number; ("", "") for other texts."""
    exact = ABOUT.split(text)[0].strip()
    if _RELATION.search(exact) or len(split(exact)) > 1:
        return "", ""
    sides = split(exact, ("=",))
    if len(sides) < 2 or exact.endswith("=") or '"' in sides[0]:
        return "", ""
    closed = not has_variables(sides[-1]) and re.search(r"[0-9]|\\pi", sides[-1]) and '"' not in sides[-1]
    return (sides[0], sides[-1]) if closed and _LETTERS.search(sides[0]) else ("", "")


def _unsolved(side: str) -> bool:
    """Return whether a side has a single letter, a small one, outside of exponents: it is a variable to solve for."""
    if _INDEXED.fullmatch(side):
        return False
    letters = set(_LETTERS.findall(_COMMAND.sub(" ", _RAISED.sub("", side))))
    return len(letters) == 1 and min(letters).islower()
