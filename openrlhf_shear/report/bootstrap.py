"""Estimates with intervals, of quantities as analyses declare them.

Intervals are percentile bootstraps over *problems*: problems are drawn with replacement and all rows of a problem come
along, since rows of one problem resemble each other. A resample is the number of times each problem was drawn, so a
statistic is a function of problem weights. (`scipy.stats.bootstrap` has no vectors of statistics that share their
resamples, and gives no interval once a resample has no value; the tests compare with it where it has one.)

A percentile interval is as biased as its statistic: a rank correlation of noisy means lies nearer 0 in resamples.

Legend: P problems, V values of all quantities, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openrlhf_shear.report.estimates import COVERAGE, Estimate
from openrlhf_shear.report.quantities import Quantity

FEW_PROBLEMS = 10  # fewer give no interval worth the name
UNDEFINED = 0.05  # of the resamples, at most
WIDE = 0.5  # of all values that are possible, at most


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
        self, quantities: Sequence[Quantity], shared: Callable[[np.ndarray], Any] | None = None
    ) -> dict[str, Estimate | list[Estimate]]:
        """The estimate of each quantity by its name; a list of V for one whose rows are (P, V).

        Args:
            quantities: of the same P problems.
            shared: what the statistics take, made of (P,) problem weights once a resample; the weights if not given.
        """
        drawn_ones = [quantity for quantity in quantities if quantity.statistic]
        values, drawn = self._values(drawn_ones, shared or (lambda weights: weights))
        made, first = {}, 0
        for quantity in quantities:
            rows, papers = quantity.columns, quantity.of_each(quantity.paper)
            if quantity.statistic:
                at = range(first, first + rows.shape[1])
                each = [_estimate(quantity, values[v], drawn[:, v], rows[:, v - first], papers[v - first]) for v in at]
                first = at.stop
            else:
                each = [_count(column, paper) for column, paper in zip(rows.T, papers, strict=True)]
            made[quantity.name] = each if np.ndim(quantity.rows) > 1 else each[0]
        return made

    def _values(self, quantities: Sequence[Quantity], shared: Callable) -> tuple[np.ndarray, np.ndarray]:
        """(V,) values of the sample and (R, V) of the resamples; NaN, and none, where there is nothing to resample."""

        def statistic(weights: np.ndarray) -> np.ndarray:
            of = shared(weights)
            return np.concatenate([np.atleast_1d(quantity.statistic(of)) for quantity in quantities], dtype=float)

        rows = np.hstack([quantity.columns for quantity in quantities])
        problems, number = rows.shape
        values, drawn = np.full(number, np.nan), np.full((0, number), np.nan)
        if problems and rows.any():
            values = statistic(np.ones(problems))
        if problems > 1 and np.isfinite(values).any():
            drawn = np.array([statistic(weights) for weights in self.draws(problems)])
        return values, drawn


def _count(rows: np.ndarray, paper: float | None) -> Estimate:
    return Estimate(int(rows.sum()), None, None, int((rows > 0).sum()), int(rows.sum()), paper)


def _estimate(quantity: Quantity, value: float, drawn: np.ndarray, rows: np.ndarray, paper: float | None) -> Estimate:
    problems, total = int((rows > 0).sum()), int(rows.sum())
    if not np.isfinite(value):
        return Estimate(None, None, None, problems, total, paper, f"not defined: it needs {quantity.needs}")
    kept = drawn[np.isfinite(drawn)]
    low, high = None, None
    if problems > 1 and len(kept):
        low, high = (float(end) for end in np.quantile(kept, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]))
    estimate = Estimate(float(value), low, high, problems, total, paper)
    if problems < FEW_PROBLEMS:
        of = "one problem" if problems == 1 else f"{problems} problems"
        estimate = estimate.warn(f"rests on {of}, too few for an interval that means anything")
    lost = 1 - len(kept) / len(drawn) if len(drawn) else 0.0
    if lost > UNDEFINED:
        of = f"{lost:.0%} of the resamples"
        estimate = estimate.warn(f"not defined in {of}, since few problems have {quantity.needs}")
    if quantity.span and low is not None and high - low > WIDE * quantity.span:
        estimate = estimate.warn("the interval covers more than half of what is possible, so the sample says nothing")
    return estimate
