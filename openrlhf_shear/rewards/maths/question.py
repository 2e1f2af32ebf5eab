"""Formulas of a question: what a policy could copy instead of an answer."""

from functools import lru_cache

import regex as re

from openrlhf_shear.rewards.maths.splitting import split
from openrlhf_shear.rewards.maths.text import FORMULA, tidy

_LONGEST, _MOST = 300, 64
_LONGEST_QUESTION = 20_000
_SIDES = re.compile(r"(?<![<>!])=|[<>]|\\(?:le|ge|ne|approx|equiv)(?![A-Za-z])")


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
