r"""The lenient score of mathematics, beside the strict one: what many published tables count as correct.

After Qwen2.5-Math's `math_equal` (arXiv:2409.12122): numbers are equal within a relative 1e-4, and x also answers
x/100 and 100x, for percentages. So 0.3333 answers 1/3, and 5 answers 500. Never a reward.

Only numbers that are written as such are compared here (integers, decimals, thousands' commas, fractions, percentages,
powers of ten, with or without a unit), exactly, as fractions. Anything else keeps its strict verdict: no text of a
model is evaluated, where the original asks sympy. Unlike there, x/100 and 100x also hold for fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from openrlhf_shear.rewards.maths.numbers import Number
from openrlhf_shear.rewards.maths.text import tidy
from openrlhf_shear.rewards.maths.values import read

RELATIVE = Fraction(1, 10_000)
SCALES = (Fraction(1), Fraction(1, 100), Fraction(100))


def lenient(answer: str | None, gold: str | Sequence[str], strict: bool) -> bool:
    """Whether an extracted answer is correct by the lenient score; it is wherever it is by the strict one.

    Args:
        gold: the gold answer, or several of which any is accepted.
        strict: the verdict of `grade_math`.

    >>> lenient("0.3333", "1/3", False), lenient("5", "500", False), lenient("5.01", "5", False)
    (True, True, False)
    """
    if strict or answer is None:
        return strict
    number = read(tidy(answer))
    golds = [gold] if isinstance(gold, str) else gold
    return isinstance(number, Number) and any(_near(read(tidy(one)), number) for one in golds)


def _near(gold: object, answer: Number) -> bool:
    if not isinstance(gold, Number) or (gold.name and answer.name and gold.name != answer.name):
        return False
    if gold.unit != answer.unit and ((gold.unit and answer.unit) or gold.rescaled or answer.rescaled):
        return False
    return any(_close(gold.value * scale, answer.value) for scale in SCALES)


def _close(wanted: Fraction, value: Fraction) -> bool:
    """`math.isclose(wanted, value, rel_tol=1e-4)`, without floats."""
    return abs(wanted - value) <= RELATIVE * max(abs(wanted), abs(value))
