"""A number with its interval, the counts it rests on, the paper's value, and a warning where it says nothing.

Intervals are percentile bootstraps over *problems*: problems are drawn with replacement and all rows of a problem come
along, since rows of one problem resemble each other. A resample is the number of times each problem was drawn, so a
statistic is a function of problem weights. (`scipy.stats.bootstrap` has no vectors of statistics that share their
resamples, and gives no interval once a resample has no value; the tests compare with it where it has one.)

A percentile interval is as biased as its statistic: a rank correlation of noisy means lies nearer 0 in resamples.

Legend: P problems, V values of an analysis, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np

FEW_PROBLEMS = 10  # fewer give no interval worth the name
UNDEFINED = 0.05  # of the resamples, at most
WIDE = 0.5  # of all values that are possible, at most
COVERAGE = 0.95

Statistic = Callable[[np.ndarray], np.ndarray]  # (P,) weights -> (V,), NaN where it is not defined


@dataclass(frozen=True)
class Estimate:
    """One number of an analysis.

    Attributes:
        value: None where it is not defined; the warning says what it needs.
        low, high: the 95% interval; None without a value or with fewer than two problems.
        problems, rows: that the value rests on.
        paper: the paper's value; None if it gives none.
        warning: why the value or its interval says little; None if nothing speaks against it.
    """

    value: float | None
    low: float | None
    high: float | None
    problems: int
    rows: int
    paper: float | None = None
    warning: str | None = None

    @property
    def shown(self) -> tuple[float, float, float]:
        """Value, low and high as floats for plotting, NaN for None."""
        return tuple(float("nan") if number is None else number for number in (self.value, self.low, self.high))

    def warn(self, text: str) -> Estimate:
        """The same number with one more warning."""
        return replace(self, warning=f"{self.warning}; {text}" if self.warning else text)


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are made; the same seed draws the same problems in every analysis of as many problems."""

    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 1:
            raise ValueError(f"resamples must be at least 1: got {self.resamples}; use e.g. 1000")

    def draws(self, problems: int) -> Iterator[np.ndarray]:
        """R times (P,): how often each problem is drawn."""
        rng = np.random.default_rng(self.seed)
        return iter(rng.multinomial(problems, np.full(problems, 1 / problems), size=self.resamples).astype(float))

    def estimates(
        self,
        statistic: Statistic,
        rows: np.ndarray,
        needs: str,
        span: float | Sequence[float | None] | None = None,
        papers: Sequence[float | None] | None = None,
    ) -> list[Estimate]:
        """One estimate a value of the statistic.

        Args:
            rows: (P, V) rows of each problem that each value rests on.
            needs: what a value must have to be defined, for the warning: "two different distances".
            span: largest minus smallest value that is possible, of each or of all; None if there is no bound.
            papers: (V,) the paper's values.
        """
        rows = np.asarray(rows)
        problems, values = rows.shape
        papers = papers or [None] * values
        spans = list(span) if isinstance(span, Sequence) else [span] * values
        found, drawn = np.full(values, np.nan), np.full((0, values), np.nan)
        if problems and rows.any():
            found = np.asarray(statistic(np.ones(problems)), dtype=float)
        if problems > 1 and np.isfinite(found).any():
            drawn = np.array([statistic(weights) for weights in self.draws(problems)], dtype=float)
        return [
            _estimate(found[v], drawn[:, v], (rows[:, v] > 0).sum(), rows[:, v].sum(), needs, spans[v], papers[v])
            for v in range(values)
        ]


def count(rows: np.ndarray, paper: float | None = None) -> Estimate:
    """How many rows the sample has, which has no interval; `rows` are (P,) of each problem."""
    return Estimate(int(np.sum(rows)), None, None, int((np.asarray(rows) > 0).sum()), int(np.sum(rows)), paper)


def _estimate(
    value: float, drawn: np.ndarray, problems: int, rows: int, needs: str, span: float | None, paper: float | None
) -> Estimate:
    problems, rows = int(problems), int(rows)
    if not np.isfinite(value):
        return Estimate(None, None, None, problems, rows, paper, f"not defined: it needs {needs}")
    kept = drawn[np.isfinite(drawn)]
    low, high = None, None
    if problems > 1 and len(kept):
        low, high = (float(end) for end in np.quantile(kept, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]))
    estimate = Estimate(float(value), low, high, problems, rows, paper)
    if problems < FEW_PROBLEMS:
        of = "one problem" if problems == 1 else f"{problems} problems"
        estimate = estimate.warn(f"rests on {of}, too few for an interval that means anything")
    lost = 1 - len(kept) / len(drawn) if len(drawn) else 0.0
    if lost > UNDEFINED:
        estimate = estimate.warn(f"not defined in {lost:.0%} of the resamples, since few problems have {needs}")
    if span and low is not None and high - low > WIDE * span:
        estimate = estimate.warn("the interval covers more than half of what is possible, so the sample says nothing")
    return estimate


@dataclass(frozen=True)
class Stat:
    """Over seeds; fractions in [0, 1] (or whatever went in). `std` is the sample's, None for one seed."""

    mean: float
    std: float | None
    n: int


def stat(values: Iterable[float]) -> Stat | None:
    """None without a value.

    >>> stat([1.0, 2.0, 3.0])
    Stat(mean=2.0, std=1.0, n=3)
    """
    values = list(values)
    if not values:
        return None
    return Stat(fmean(values), stdev(values) if len(values) > 1 else None, len(values))
