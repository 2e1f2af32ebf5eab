"""The verdict of a diagnosis, in five lines: four signs that the distance tracks reasoning quality, and their sum.

Each sign is the most careful of its kind: prefixes are compared within a problem and position, changes at a position.
A sign is shown where the 95% interval lies on the right side of 0. An estimate with a warning shows nothing.
"""

from collections.abc import Mapping

from openrlhf_shear.report.bootstrap import Analysis
from openrlhf_shear.report.estimates import Estimate

YES, NO, OPEN, FEW = "yes", "no", "not shown", "too few"


def verdict(analyses: Mapping[str, Analysis], problems: int) -> list[str]:
    """Return five lines of at most 80 columns.

    Args:
        analyses: those of `findings.find`.
        problems: number of problems with comparable prefixes.
    """
    within, changes, separation = (analyses[name] for name in ("within", "changes", "separation"))
    signs = (
        ("Success falls with distance, wrong rollouts", within.rho_incorrect, -1),
        ("Success falls with distance, right rollouts", within.rho_correct, -1),
        ("Distance rises where success drops, by step", changes.rho_position, -1),
        ("Large distances part the outcomes better", separation.rise_problem, 1),
    )
    words = [sign(estimate, side) for _, estimate, side in signs]
    lines = [
        f"{what:43}  {word:9}  {estimate.text('.2f')}" for (what, estimate, _), word in zip(signs, words, strict=True)
    ]
    late, asked = analyses["truncation"].last.value, analyses["groups"].retained.problems
    cut = "" if late is None else f"; {late:.0%} cut off late"
    return [*lines, f"Verdict: {_sum(words)}, {words.count(YES)} of 4 ({problems:,} of {asked:,} problems{cut})"]


def sign(estimate: Estimate, side: int) -> str:
    """Return whether the estimate lies on this side of 0: 1 means above, -1 below.

    >>> sign(Estimate(-0.3, -0.4, -0.2, 20, 99), -1), sign(Estimate(-0.3, -0.7, 0.1, 20, 99), -1)
    ('yes', 'not shown')
    """
    if estimate.low is None or estimate.warning:
        return FEW
    low, high = sorted((side * estimate.low, side * estimate.high))
    return YES if low > 0 else NO if high < 0 else OPEN


def _sum(words: list[str]) -> str:
    if YES in words:
        return YES if set(words) == {YES} else "in part"
    return next((word for word in (NO, OPEN) if word in words), FEW)
