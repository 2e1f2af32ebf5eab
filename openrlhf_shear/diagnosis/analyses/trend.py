"""Section 2's aggregate trend: along the reasoning chain, accuracy declines where the distance rises.

    rho = Spearman over positions of (mean accuracy, mean distance)

The curve of all prefixes mixes rollouts of different lengths and outcomes: deep positions are reached by long rollouts
only, which are wrong more often. So the curves of originally correct and incorrect rollouts stand beside it.

And section 4's check: the distance of early prefixes is smaller than that of late ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas

from openrlhf_shear.report.estimates import Bootstrap, Estimate
from openrlhf_shear.report.weighted import problem_codes, ratio, spearman_of, sums

PAPER_RHO = -0.96
PAPER_QUARTILES = (0.67, 0.75)
FEW_POSITIONS = 5


@dataclass(frozen=True)
class Curve:
    """Means by position, over all prefixes there.

    Attributes:
        positions: tokens, ascending.
        accuracy, distance: one a position.
        rho: between the two, over positions.
        left_out: positions that too few problems reach.
        reach: how many problems a position needed.
    """

    positions: list[int]
    accuracy: list[Estimate]
    distance: list[Estimate]
    rho: Estimate
    left_out: int
    reach: int


@dataclass(frozen=True)
class Trend:
    every: Curve
    correct: Curve
    incorrect: Curve

    @property
    def numbers(self) -> dict[str, Estimate]:
        text = "Aggregate trend: rho of mean accuracy and mean distance over positions"
        return {
            text: self.every.rho,
            f"{text}, originally correct rollouts": self.correct.rho,
            f"{text}, originally incorrect rollouts": self.incorrect.rho,
        }


def aggregate_trend(prefixes: pandas.DataFrame, bootstrap: Bootstrap, min_problems: int = 10) -> Trend:
    """Mean accuracy and distance by position, of all rollouts and by outcome.

    Args:
        min_problems: that must reach a position for it to count; of a table with fewer problems, all of them.
    """
    correct = prefixes["correct"]
    return Trend(
        _curve(prefixes, bootstrap, min_problems, PAPER_RHO),
        _curve(prefixes[correct], bootstrap, min_problems),
        _curve(prefixes[~correct], bootstrap, min_problems),
    )


def _curve(prefixes: pandas.DataFrame, bootstrap: Bootstrap, min_problems: int, paper: float | None = None) -> Curve:
    reached = prefixes.groupby("position")["problem"].nunique()
    reach = max(1, min(min_problems, prefixes["problem"].nunique()))
    positions = reached.index[reached >= reach].to_numpy()
    prefixes = prefixes[prefixes["position"].isin(positions)]
    problems, number = problem_codes(prefixes["problem"])
    cells = np.searchsorted(positions, prefixes["position"])
    shape = (number, len(positions))
    rows = sums(problems, cells, None, shape)
    accuracy, distance = (sums(problems, cells, prefixes[name].to_numpy(), shape) for name in ("accuracy", "distance"))

    def statistic(weights: np.ndarray) -> np.ndarray:
        means = [ratio(weights @ total, weights @ rows) for total in (accuracy, distance)]
        return np.append(means, spearman_of(*means))

    n = len(positions)
    bases = np.hstack([rows, rows, rows.sum(axis=1, keepdims=True)])
    needs = "three positions with different accuracies and distances"
    spans, papers = [1.0] * n + [None] * n + [2.0], [None] * 2 * n + [paper]
    *means, rho = bootstrap.estimates(statistic, bases, needs, spans, papers)
    if rho.value is not None and n < FEW_POSITIONS:
        rho = rho.warn(f"over {n} positions only, where even chance gives large values")
    return Curve(positions.tolist(), means[:n], means[n:], rho, int((reached < reach).sum()), reach)


@dataclass(frozen=True)
class Quartiles:
    """Mean distances of early and of late prefixes.

    Attributes:
        first, last: prefixes up to the first and from the third quartile of all prefix positions. That is our reading:
            the paper gives values for the "first quartile of prefix positions" and does not say how it cuts them.
        first_own, last_own: prefixes in the first and last quarter of their own rollout's, so that every rollout
            counts in both; of one prefix alone in neither.
    """

    first: Estimate
    last: Estimate
    difference: Estimate
    first_own: Estimate
    last_own: Estimate
    difference_own: Estimate

    @property
    def numbers(self) -> dict[str, Estimate]:
        return {
            "Mean distance in the first quartile of prefix positions": self.first,
            "Mean distance in the last quartile of prefix positions": self.last,
            "Last minus first quartile of prefix positions": self.difference,
            "Mean distance in the first quarter of each rollout": self.first_own,
            "Mean distance in the last quarter of each rollout": self.last_own,
            "Last minus first quarter of each rollout": self.difference_own,
        }


def quartiles(prefixes: pandas.DataFrame, bootstrap: Bootstrap) -> Quartiles:
    """Does the distance grow along the chain?"""
    position, distance = prefixes["position"].to_numpy(), prefixes["distance"].to_numpy()
    problems, number = problem_codes(prefixes["problem"])
    of_rollout = prefixes.groupby(["problem", "sample"])["position"]
    own = (of_rollout.rank().to_numpy() - 0.5) / of_rollout.transform("size").to_numpy()
    cells = [early_late(position), _ends(own, 0.25, 0.75)]
    rows, total = (
        np.hstack([sums(problems, cell, values, (number, 2)) for cell in cells]) for values in (None, distance)
    )

    def statistic(weights: np.ndarray) -> np.ndarray:
        a, b, c, d = ratio(weights @ total, weights @ rows)
        return np.array([a, b, b - a, c, d, d - c])

    bases = np.stack([rows[:, 0], rows[:, 1], rows[:, :2].sum(1), rows[:, 2], rows[:, 3], rows[:, 2:].sum(1)], axis=1)
    first, last = PAPER_QUARTILES
    papers = [first, last, round(last - first, 2), None, None, None]
    return Quartiles(*bootstrap.estimates(statistic, bases, "prefixes at different positions", papers=papers))


def early_late(position: np.ndarray) -> np.ndarray:
    """(N,) 0 up to the first quartile of the positions, 1 from the third, otherwise -1; all -1 if the two are equal."""
    return _ends(position, *(np.quantile(position, [0.25, 0.75]) if len(position) else (0, 0)))


def _ends(place: np.ndarray, first: float, last: float) -> np.ndarray:
    """(N,) 0 up to `first`, 1 from `last`, otherwise -1; all -1 if the two are the same."""
    if not first < last:
        return np.full(len(place), -1)
    return np.where(place <= first, 0, np.where(place >= last, 1, -1))
