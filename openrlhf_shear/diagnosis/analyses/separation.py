"""Section 5.1: the larger the distance, the better accuracy tells prefixes of correct rollouts from those of incorrect.

Bins hold about as many prefixes each, cut at quantiles of the distance. In a bin b,

    AUC_b = P(Acc(correct prefix) > Acc(incorrect prefix)) + P(equal) / 2

Bins are not matched in position: if large distances are late ones, where little is left to go wrong, AUC_b rises
without any doing of the distance. So the AUC of pairs of prefixes at the same position stands beside it.

Nor are they matched in problem: distances are large where few rollouts oppose, so in problems that nearly always end as
this rollout did (see `within`). So the AUC of pairs of one problem at the same position stands there too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.rows import Rows
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity, ends, numbers_of
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.weighted import Ordered, ratio, sums

PAPER_AUC = (0.65, 0.97)  # "approximately 0.65 at low", "above 0.97 at high"
PAPER_SPANS = (23_704, 21_352)
FEWEST_ROWS = 20  # in a bin
MOST_LEVELS = 32


@dataclass(frozen=True)
class Bin:
    """Prefixes whose distance is in [low, high), the last one's end included.

    Attributes:
        distance: their mean.
        auc: of accuracy, correct against incorrect. auc_position: of pairs at the same position only. auc_problem: of
            pairs of the same problem at the same position only; its counts are of prefixes in such a pair.
        accuracy_correct, accuracy_incorrect: means.
        density_correct, density_incorrect: one a level of accuracy, the share of that outcome's prefixes.
    """

    low: float
    high: float
    distance: Estimate
    auc: Estimate
    auc_position: Estimate
    auc_problem: Estimate
    accuracy_correct: Estimate
    accuracy_incorrect: Estimate
    density_correct: list[Estimate]
    density_incorrect: list[Estimate]


@dataclass(frozen=True)
class Separation(Analysis):
    """Accuracy and outcome by distance.

    Attributes:
        bins: ascending in distance.
        rise: AUC of the last bin minus that of the first; rise_position: of pairs at the same position; rise_problem:
            of pairs of the same problem at the same position.
        auc: over all prefixes.
        distance_auc: of the distance itself, incorrect against correct: does it alone tell the outcome? 0.5 is chance.
        levels: accuracies of the densities; a prefix counts for the nearest.
        points: distance, accuracy, correct; for pictures, not written as JSON.
    """

    bins: list[Bin]
    rise: Estimate
    rise_position: Estimate
    rise_problem: Estimate
    auc: Estimate
    distance_auc: Estimate
    spans_correct: Estimate
    spans_incorrect: Estimate
    levels: list[float]
    points: pandas.DataFrame = field(repr=False, compare=False)


def separation(prefixes: pandas.DataFrame, completions: int, bootstrap: Bootstrap, bins: int = 10) -> Separation:
    """AUC, accuracy by outcome and densities in bins of distance.

    Args:
        completions: asked for a prefix; accuracy has this many levels and 0, at most 33.
        bins: fewer are made where less than 20 prefixes would be in one, or distances are equal.
    """
    rows, distance = Rows(prefixes), prefixes["distance"].to_numpy()
    cells, edges = _bins(distance, bins)
    n = max(len(edges) - 1, 0)
    (of_all, aucs), (within, aucs_within) = _aucs(rows, cells, n), _aucs_within(rows, cells, n)
    estimates = bootstrap.estimates(of_all, aucs) | bootstrap.estimates(within, aucs_within)
    numbers = numbers_of([*of_all, *within], estimates)
    of_bin = [estimates.pop(name) for name in ("by_bin", "by_position", "by_problem")]
    most, outcome = min(completions, MOST_LEVELS), 2 * cells + rows["correct"]
    level = (rows["accuracy"] * most).round().astype(int)
    by_cell = bootstrap.estimates(
        [
            rows.means("distance", "distance", cells, n, needs="a prefix"),
            rows.means("accuracy", "accuracy", outcome, 2 * n, needs="a prefix", span=1.0),
            _densities(rows, outcome, 2 * n, level, most + 1),
        ]
    )
    accuracy, densities = by_cell["accuracy"], by_cell["density"]
    density = [densities[at : at + most + 1] for at in range(0, len(densities), most + 1)]
    made = [
        Bin(
            *(edges[b], edges[b + 1], by_cell["distance"][b], *(aucs[b] for aucs in of_bin)),
            *(accuracy[2 * b + 1], accuracy[2 * b], density[2 * b + 1], density[2 * b]),
        )
        for b in range(n)
    ]
    levels, points = (np.arange(most + 1) / most).tolist(), prefixes[["distance", "accuracy", "correct"]]
    return Separation(made, **estimates, levels=levels, points=points, numbers=numbers)


def _bins(distance: np.ndarray, bins: int) -> tuple[np.ndarray, list[float]]:
    """(N,) the bin of each row, and the bins' edges."""
    if not len(distance):
        return np.zeros(0, dtype=int), []
    bins = max(1, min(bins, len(distance) // FEWEST_ROWS))
    edges = np.unique(np.quantile(distance, np.linspace(0, 1, bins + 1)))
    if len(edges) == 1:
        edges = np.repeat(edges, 2)
    return np.searchsorted(edges[1:-1], distance, side="right"), edges.tolist()


def _aucs(rows: Rows, cells: np.ndarray, n: int) -> tuple[list[Quantity], Callable]:
    """How many prefixes each outcome has, and their AUCs: of all prefixes, by bin, and by bin at fixed position."""
    correct, accuracy, positions = rows["correct"].astype(bool), rows["accuracy"], rows.strata(["position"])
    wide = int(positions.max(initial=0)) + 1
    everywhere, distance = Ordered(accuracy), Ordered(rows["distance"])
    by_bin, by_position = Ordered(accuracy, cells), Ordered(accuracy, cells * wide + positions)
    bin_of = np.arange(by_position.strata) // wide

    def aucs(weights: np.ndarray) -> dict[str, np.ndarray]:
        weights = weights[rows.problems]
        fixed = (np.bincount(bin_of, part, n) for part in by_position.wins(correct, weights))
        return {
            "all": ratio(*everywhere.wins(correct, weights)),
            "distance": ratio(*distance.wins(~correct, weights)),
            "bin": ratio(*by_bin.wins(correct, weights)),
            "fixed": ratio(*fixed),
        }

    of_bin, whole = rows.sums(cells, n), rows.counts(rows.every)
    both, of = _both_ends(of_bin), partial(Quantity, needs="prefixes of correct and of incorrect rollouts")
    (low, high), text = PAPER_AUC, "AUC of accuracy"
    change, rise = (round(high - low, 2), f"{text}, last minus first bin") if n > 1 else (None, None)
    outcomes = ("correct", "incorrect")
    counted = zip(outcomes, (correct, ~correct), PAPER_SPANS, strict=True)
    quantities = [
        Quantity(f"spans_{o}", None, rows.counts(part), paper=paper, what=f"Prefixes of originally {o} rollouts")
        for o, part, paper in counted
    ] + [
        of("auc", itemgetter("all"), whole, span=1.0, what=f"{text} between them, all distances"),
        of("distance_auc", itemgetter("distance"), whole, span=1.0, what="AUC of the distance between them"),
        of("by_bin", itemgetter("bin"), of_bin, span=1.0, paper=ends(low, high, n), what=_extremes(text, n)),
        of("rise", lambda m: m["bin"][-1] - m["bin"][0], both, span=2.0, paper=change, what=rise),
        of("by_position", itemgetter("fixed"), of_bin, span=1.0),
        of(
            "rise_position",
            lambda m: m["fixed"][-1] - m["fixed"][0],
            both,
            span=2.0,
            what=rise and f"{rise}, pairs at the same position",
        ),
    ]
    return quantities, aucs


def _aucs_within(rows: Rows, cells: np.ndarray, n: int) -> tuple[list[Quantity], Callable]:
    """AUCs by bin, and their rise, of pairs of the same problem at the same position."""
    strata = Rows(rows.frame.assign(bin=cells)).strata(["bin", "problem", "position"])
    won, pairs = Ordered(rows["accuracy"], strata).wins(rows["correct"].astype(bool), np.ones(len(cells)))
    paired = rows.sums(np.where(pairs[strata] > 0, cells, -1), n)
    _, first = np.unique(strata, return_index=True)
    # a problem's copies are no pairs of each other, so both are linear in its weight
    won, pairs = (sums(rows.problems[first], cells[first], of, (rows.number, n)) for of in (won, pairs))

    def aucs(weights: np.ndarray) -> np.ndarray:
        return ratio(weights @ won, weights @ pairs)

    of = partial(Quantity, needs="prefixes of correct and of incorrect rollouts at the same position")
    text = "AUC of accuracy within a problem, pairs at the same position"
    rise = f"{text}, last minus first bin" if n > 1 else None
    quantities = [
        of("by_problem", lambda auc: auc, paired, span=1.0, what=_extremes(text, n)),
        of("rise_problem", lambda auc: auc[-1] - auc[0], _both_ends(paired), span=2.0, what=rise),
    ]
    return quantities, aucs


def _extremes(text: str, n: int) -> list[str | None]:
    return ends(f"{text}, bin of the smallest distances", f"{text}, bin of the largest distances", n)


def _both_ends(rows: np.ndarray) -> np.ndarray:
    """(P,) of (P, n) rows those of the first and the last bin."""
    return rows[:, 0] + rows[:, -1] if rows.shape[1] > 1 else rows.sum(axis=1)


def _densities(rows: Rows, cells: np.ndarray, n: int, level: np.ndarray, levels: int) -> Quantity:
    """Of each of n cells the share of its rows at each level; each share rests on the rows of its cell."""
    at_level = rows.sums(cells * levels + level, n * levels)

    def shares(weights: np.ndarray) -> np.ndarray:
        at = (weights @ at_level).reshape(n, levels)
        return ratio(at, np.broadcast_to(at.sum(axis=1, keepdims=True), at.shape)).ravel()

    of_cell = np.repeat(at_level.reshape(rows.number, n, levels).sum(axis=2), levels, axis=1)
    return Quantity("density", shares, of_cell, needs="a prefix", span=1.0)
