"""Comparisons of a rule with its baseline over paired seeds, beside the paired t of `estimates.paired`.

The interquartile mean and the probability of improvement are those of rliable (Agarwal et al. 2021, arXiv 2108.13264),
whose package needs `arch` and seaborn. Intervals are percentile bootstraps over seeds, which keep the pairs together.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import trim_mean

from openrlhf_shear.report.bootstrap import Bootstrap, interval
from openrlhf_shear.report.estimates import FEW_PAIRS, Estimate

QUARTER = 0.25


def iqm(scores: Sequence[float], bootstrap: Bootstrap) -> Estimate:
    """Return the interquartile mean of (n,) scores, one a seed: their mean without the n // 4 lowest and highest."""
    values = np.asarray(scores, dtype=float)
    return _over_seeds(len(values), lambda drawn: trim_mean(values[drawn], QUARTER), bootstrap)


def probability_of_improvement(scores: Sequence[float], others: Sequence[float], bootstrap: Bootstrap) -> Estimate:
    """Return the chance that a run of the rule beats a run of the other, whatever their seeds; ties count half.

    >>> probability_of_improvement([3.0, 1.0], [1.0, 2.0], Bootstrap(10)).value
    0.625

    Args:
        scores, others: (n,), of the same seeds in the same order.
    """
    mine, its = np.asarray(scores, dtype=float), np.asarray(others, dtype=float)
    if mine.shape != its.shape:
        raise ValueError(f"scores must be pairs: got {len(mine)} and {len(its)}")
    won = (mine[:, None] > its) + 0.5 * (mine[:, None] == its)
    return _over_seeds(len(mine), lambda drawn: won[np.ix_(drawn, drawn)].mean(), bootstrap)


def _over_seeds(seeds: int, statistic: Callable[[np.ndarray], float], bootstrap: Bootstrap) -> Estimate:
    """Return the statistic of all seeds, given by their indices, with its interval over resampled seeds."""
    if not seeds:
        return Estimate(None, None, None, 0, 0, warning="not defined: it needs a seed")
    every = np.arange(seeds)
    low = high = None
    if seeds > 1:
        drawn = [statistic(np.repeat(every, counts.astype(int))) for counts in bootstrap.draws(seeds)]
        low, high = interval(drawn)
    few = f"rests on {seeds} seeds, too few for an interval that means much" if seeds < FEW_PAIRS else None
    return Estimate(float(statistic(every)), low, high, seeds, seeds, warning=few)


def holm(ps: Sequence[float], planned: int) -> list[float]:
    """Return Holm's (1979) corrected p values of some of `planned` tests; missing tests count as p = 1.

    >>> holm([0.01, 0.04, 0.03], 3)
    [0.03, 0.06, 0.06]
    """
    order, largest, corrected = sorted(range(len(ps)), key=lambda i: ps[i]), 0.0, [0.0] * len(ps)
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (planned - rank) * ps[i]))
        corrected[i] = largest
    return corrected
