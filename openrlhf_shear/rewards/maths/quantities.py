r"""What a question names: its formulas, and equations that only say what a quantity is, `m+n=204`."""

from functools import lru_cache

import regex as re

from openrlhf_shear.rewards.maths.guard import has_variables
from openrlhf_shear.rewards.maths.splitting import split
from openrlhf_shear.rewards.maths.text import ABOUT, FORMULA, squeeze, tidy
from openrlhf_shear.rewards.maths.values import congruence

_COMMAND = re.compile(r"\\[A-Za-z]++")
_RAISED = re.compile(r"\^(?:\{[^{}]*+\}|.)")
_INDEXED = re.compile(r"[A-Za-z]_\{.*\}")
_LETTERS = re.compile(r"[A-Za-z]")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|in|notin|subset|equiv)(?![A-Za-z])")
_LONGEST, _MOST = 300, 64
_LONGEST_QUESTION = 20_000
_SIDES = re.compile(r"(?<![<>!])=|[<>]|\\(?:le|ge|ne|approx|equiv)(?![A-Za-z])")


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


def written_formulas(question: str) -> list[str]:
    """Return the LaTeX formulas of a question as they are written, each once."""
    found = (next(filter(None, match.groups())).strip() for match in FORMULA.finditer(question[-_LONGEST_QUESTION:]))
    return list(dict.fromkeys(formula for formula in found if 0 < len(formula) <= _LONGEST))


@lru_cache(1024)  # the rollouts of a group have the same question
def formulas_of(question: str) -> tuple[str, ...]:
    r"""Return the tidy formulas of a question, the sides of its equations and inequalities, and the items of its lists.

    >>> formulas_of(r"Expand $f(x)=(x+1)^2$.")
    ('f(x)=(x+1)^2', 'f(x)', '(x+1)^2')
    """
    found: dict[str, None] = {}
    for formula in map(tidy, written_formulas(question)):
        for item in (formula, *split(formula)):
            found |= dict.fromkeys(part for part in (item, *(side.strip() for side in _SIDES.split(item))) if part)
    return tuple(found)[:_MOST]
