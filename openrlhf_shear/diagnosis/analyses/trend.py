"""Section 2's aggregate trend: along the reasoning chain, accuracy declines where the distance rises.

    rho = Spearman over positions of (mean accuracy, mean distance)

The curve of all prefixes mixes rollouts of different lengths and outcomes: deep positions are reached by long rollouts
only, which are wrong more often. So the curves of originally correct and incorrect rollouts stand beside it.

And section 4's check: the distance of early prefixes is smaller than that of late ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.rows import Rows
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.weighted import ratio, spearman_of

PAPER_RHO = -0.96
PAPER_QUARTILES = (0.67, 0.75)
FEW_POSITIONS = 5


@dataclass(frozen=True)
class Curve(Analysis):
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
        return self.every.numbers | self.correct.numbers | self.incorrect.numbers


def aggregate_trend(prefixes: pandas.DataFrame, bootstrap: Bootstrap, min_problems: int = 10) -> Trend:
    """Mean accuracy and distance by position, of all rollouts and by outcome.

    Args:
        min_problems: that must reach a position for it to count; of a table with fewer problems, all of them.
    """
    correct = prefixes["correct"]
    text = "Aggregate trend: rho of mean accuracy and mean distance over positions"
    return Trend(
        _curve(prefixes, bootstrap, min_problems, text, PAPER_RHO),
        _curve(prefixes[correct], bootstrap, min_problems, f"{text}, originally correct rollouts"),
        _curve(prefixes[~correct], bootstrap, min_problems, f"{text}, originally incorrect rollouts"),
    )


def _curve(
    prefixes: pandas.DataFrame, bootstrap: Bootstrap, min_problems: int, what: str, paper: float | None = None
) -> Curve:
    reached = prefixes.groupby("position")["problem"].nunique()
    reach = max(1, min(min_problems, prefixes["problem"].nunique()))
    positions = reached.index[reached >= reach].to_numpy()
    prefixes = prefixes[prefixes["position"].isin(positions)]
    of = Rows(prefixes)
    sums = partial(of.sums, np.searchsorted(positions, prefixes["position"]), len(positions))
    rows, accuracy, distance = sums(), sums(of["accuracy"]), sums(of["distance"])

    def curves(weights: np.ndarray) -> list[np.ndarray]:
        return [ratio(weights @ total, weights @ rows) for total in (accuracy, distance)]

    needs = "three positions with different accuracies and distances"
    only = f"over {len(positions)} positions only, where even chance gives large values"
    caution = only if len(positions) < FEW_POSITIONS else None
    total = rows.sum(axis=1)
    quantities = [
        Quantity("accuracy", itemgetter(0), rows, needs, span=1.0),
        Quantity("distance", itemgetter(1), rows, needs),
        Quantity("rho", lambda both: spearman_of(*both), total, needs, 2, paper=paper, what=what, caution=caution),
    ]
    beside = {"positions": positions.tolist(), "left_out": int((reached < reach).sum()), "reach": reach}
    return bootstrap.analysis(Curve, quantities, curves, **beside)


@dataclass(frozen=True)
class Quartiles(Analysis):
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


def quartiles(prefixes: pandas.DataFrame, bootstrap: Bootstrap) -> Quartiles:
    """Does the distance grow along the chain?"""
    sample = Rows(prefixes)
    of_rollout = prefixes.groupby(["problem", "sample"])["position"]
    own = (of_rollout.rank().to_numpy() - 0.5) / of_rollout.transform("size").to_numpy()
    cells = [early_late(sample["position"]), _ends(own, 0.25, 0.75)]
    rows, total = (np.hstack([sample.sums(cell, 2, of) for cell in cells]) for of in (None, sample["distance"]))

    def distances(weights: np.ndarray) -> np.ndarray:
        return ratio(weights @ total, weights @ rows)

    of = partial(Quantity, needs="prefixes at different positions")
    early, late, both = rows[:, ::2].T, rows[:, 1::2].T, rows[:, ::2].T + rows[:, 1::2].T
    first, last, mean = *PAPER_QUARTILES, "Mean distance in the"
    change, cut, own = round(last - first, 2), "quartile of prefix positions", "quarter of each rollout"
    quantities = [
        of("first", itemgetter(0), early[0], paper=first, what=f"{mean} first {cut}"),
        of("last", itemgetter(1), late[0], paper=last, what=f"{mean} last {cut}"),
        of("difference", lambda m: m[1] - m[0], both[0], paper=change, what=f"Last minus first {cut}"),
        of("first_own", itemgetter(2), early[1], what=f"{mean} first {own}"),
        of("last_own", itemgetter(3), late[1], what=f"{mean} last {own}"),
        of("difference_own", lambda m: m[3] - m[2], both[1], what=f"Last minus first {own}"),
    ]
    return bootstrap.analysis(Quartiles, quantities, distances)


def early_late(position: np.ndarray) -> np.ndarray:
    """(N,) 0 up to the first quartile of the positions, 1 from the third, otherwise -1; all -1 if the two are equal."""
    return _ends(position, *(np.quantile(position, [0.25, 0.75]) if len(position) else (0, 0)))


def _ends(place: np.ndarray, first: float, last: float) -> np.ndarray:
    """(N,) 0 up to `first`, 1 from `last`, otherwise -1; all -1 if the two are the same."""
    if not first < last:
        return np.full(len(place), -1)
    return np.where(place <= first, 0, np.where(place >= last, 1, -1))
