"""Means of paired differences: their t intervals, and which difference could have been shown.

Legend: n pairs, d their differences, s the sample std of d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np
from scipy import optimize, stats

from openrlhf_shear.report.estimates import COVERAGE, Interval

POWER = 0.8
FEW_PAIRS = 5  # fewer give no interval worth the name
SAME = 1e-12  # a spread of accuracies that is rounding


@dataclass(frozen=True)
class Paired(Interval):
    """A mean of n paired differences and what it says.

    Attributes:
        low, high: the 95% t interval; None with one pair.
        seeds: n, how many pairs.
        detectable: the smallest true difference that the two-sided 5% paired t test finds with 80% power, if n and the
            spread are as here; None with one pair.
        warning: why the interval says little; None if nothing speaks against it.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    detectable: float | None
    warning: str | None = None

    @property
    def value(self) -> float:
        return self.mean

    @property
    def half_width(self) -> float:
        """Of the interval; 0 where there is none."""
        return 0.0 if self.low is None else (self.high - self.low) / 2


def paired(differences: Sequence[float]) -> Paired | None:
    """Mean, interval and smallest difference that could be shown of (n,) finite differences; None without any.

    >>> one = paired([0.01, 0.02, 0.03, 0.04, 0.05])
    >>> round(one.mean, 3), round(one.low, 4), round(one.high, 4), round(one.detectable, 4)
    (0.03, 0.0104, 0.0496, 0.0266)
    """
    values = np.asarray(differences, dtype=float)
    pairs = len(values)
    if not pairs:
        return None
    mean = float(values.mean())
    if pairs == 1:
        return Paired(mean, None, None, 1, None, "rests on one pair of seeds, which has no interval")
    spread = float(values.std(ddof=1))
    if spread <= SAME:
        return Paired(mean, mean, mean, pairs, 0.0, "all pairs differ alike, so the interval says nothing")
    low, high = stats.ttest_1samp(values, 0).confidence_interval(COVERAGE)
    few = f"rests on {pairs} pairs of seeds, too few for an interval that means much" if pairs < FEW_PAIRS else None
    return Paired(mean, float(low), float(high), pairs, spread / sqrt(pairs) * _noncentrality(pairs), few)


@lru_cache
def _noncentrality(pairs: int) -> float:
    """The c for which P(|T| > t_{0.975, n-1}) = 0.8, with T noncentral t of n - 1 degrees and noncentrality c."""
    free = pairs - 1
    edge = stats.t.ppf((1 + COVERAGE) / 2, free)

    def lacking(c: float) -> float:
        return stats.nct.sf(edge, free, c) + stats.nct.sf(edge, free, -c) - POWER  # its cdf is NaN far out

    return float(optimize.brentq(lacking, 0, 2 * edge + 5))
