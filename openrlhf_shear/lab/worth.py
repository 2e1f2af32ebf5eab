"""What a credit rule is worth: differences between runs that share a seed and differ in the rule alone.

With equal seeds two rules see the same problems and the same sampling seeds; intervals are those of the paired t test:
over seeds, for seeds drawn anew (and the held-out problems as they are).

Legend: n pairs of runs, d the differences of an accuracy (fractions, not percent), s their sample std.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, sqrt
from operator import attrgetter
from statistics import fmean

import numpy as np
from scipy import optimize, stats

from openrlhf_shear.lab.records import Run
from openrlhf_shear.report.estimates import Stat, stat

COVERAGE = 0.95
POWER = 0.8
FEW_PAIRS = 5  # fewer give no interval worth the name
SAME = 1e-12  # a spread of accuracies that is rounding
MEASURES = {"final": attrgetter("final"), "mean": attrgetter("mean")}


@dataclass(frozen=True)
class Paired:
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


def paired(differences: Sequence[float]) -> Paired | None:
    """Mean, interval and smallest difference that could be shown of (n,) finite differences; None without any.

    >>> found = paired([0.01, 0.02, 0.03, 0.04, 0.05])
    >>> round(found.mean, 3), round(found.low, 4), round(found.high, 4), round(found.detectable, 4)
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


def compare(runs: Iterable[Run], rule: str, against: str, measure: str) -> Paired | None:
    """The rule's accuracy minus that of `against`, over the seeds that both have; None if they share none.

    Args:
        measure: "final", on held-out problems at the end, or "mean", over the steps of training.

    Raises:
        ValueError: another measure; a seed that a rule has twice; runs of a pair that differ in their steps.
    """
    if measure not in MEASURES:
        raise ValueError(f"measure must be one of {', '.join(MEASURES)}: got {measure!r}")
    value = MEASURES[measure]
    return paired([value(mine) - value(other) for mine, other in _pairs(runs, rule, against)])


@dataclass(frozen=True)
class Versus:
    """A rule's accuracies minus those of the rule `against`."""

    against: str
    final: Paired
    mean: Paired


@dataclass(frozen=True)
class Worth:
    """A rule's accuracies over its seeds (mean, sample std, number), and its paired differences to others.

    Attributes:
        mean: of the mean accuracy over the steps.
        metrics: of the mean over the steps that have a number.
        against: "baseline", "matched", "shuffled", "shear" -> the difference, where such runs share seeds with the
            rule's. Matched and shuffled are the rule's own controls, RULE/matched and RULE/shuffled. "shear" is left
            out where it would say another row's difference once more, with the other sign.
    """

    rule: str
    seeds: tuple[int, ...]
    final: Stat
    mean: Stat
    metrics: dict[str, Stat]
    against: dict[str, Versus]


def worths(runs: Iterable[Run], baseline: str = "uniform") -> list[Worth]:
    """One a rule, in the order in which the rules first appear. Raises ValueError as `compare` does."""
    runs = list(runs)
    rules = dict.fromkeys(run.rule for run in runs)
    return [_worth(runs, rule, _references(rule, baseline, rules)) for rule in rules]


def _worth(runs: list[Run], rule: str, references: dict[str, str]) -> Worth:
    mine = _by_seed(runs, rule)
    against = {}
    for role, other in references.items():
        final, mean = (compare(runs, rule, other, measure) for measure in ("final", "mean"))
        if final and mean:
            against[role] = Versus(other, final, mean)
    names = dict.fromkeys(name for run in mine.values() for name in run.metrics)
    metrics = {name: stat(_step_means(mine.values(), name)) for name in names}
    return Worth(
        rule,
        tuple(mine),
        stat(run.final for run in mine.values()),
        stat(run.mean for run in mine.values()),
        {name: found for name, found in metrics.items() if found},
        against,
    )


def _references(rule: str, baseline: str, rules: Iterable[str]) -> dict[str, str]:
    found = {"baseline": baseline, "matched": f"{rule}/matched", "shuffled": f"{rule}/shuffled", "shear": "shear"}
    if rule in (baseline, "shear/matched", "shear/shuffled") or baseline == "shear":
        del found["shear"]
    return {role: other for role, other in found.items() if other in rules and other != rule}


def _step_means(runs: Iterable[Run], metric: str) -> list[float]:
    held = [[value for value in run.metrics.get(metric, ()) if isfinite(value)] for run in runs]
    return [fmean(values) for values in held if values]


@dataclass(frozen=True)
class Block:
    """Accuracy over steps first..last (counted from 1): the rule's mean, the baseline's, and their difference."""

    first: int
    last: int
    mean: float
    baseline: float
    difference: Paired


def curve(runs: Iterable[Run], rule: str, baseline: str, block: int = 5) -> list[Block]:
    """The learning curve in blocks of `block` steps, the last one maybe shorter; empty if the rules share no seed.

    Both means are over the seeds that both rules have.

    Raises:
        ValueError: block is below 1, or as `compare` does; pairs that differ in their steps among themselves.
    """
    if block < 1:
        raise ValueError(f"block must be at least 1: got {block}; use the number of steps to average, e.g. 5")
    pairs = _pairs(runs, rule, baseline)
    if not pairs:
        return []
    mine, others = (np.array([pair[side].accuracy for pair in pairs]) for side in (0, 1))
    found = []
    for start in range(0, mine.shape[1], block):
        one, other = (table[:, start : start + block].mean(axis=1) for table in (mine, others))
        last = min(start + block, mine.shape[1])
        found.append(Block(start + 1, last, float(one.mean()), float(other.mean()), paired(one - other)))
    return found


def _pairs(runs: Iterable[Run], rule: str, against: str) -> list[tuple[Run, Run]]:
    """By seed, of the seeds that both have."""
    runs = list(runs)
    mine, others = _by_seed(runs, rule), _by_seed(runs, against)
    pairs = [(run, others[seed]) for seed, run in mine.items() if seed in others]
    steps = {len(run.accuracy) for pair in pairs for run in pair}
    if len(steps) > 1:
        raise ValueError(f"runs of {rule} and {against} must have as many steps: got {sorted(steps)}")
    return pairs


def _by_seed(runs: Iterable[Run], rule: str) -> dict[int, Run]:
    found: dict[int, Run] = {}
    for run in runs:
        if run.rule == rule:
            if run.seed in found:
                raise ValueError(f"{rule} has seed {run.seed} twice; a pair must be one run of each rule")
            found[run.seed] = run
    return dict(sorted(found.items()))
