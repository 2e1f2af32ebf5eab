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

from openrlhf_shear.diagnosis.analyses.within import strata_of
from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.quantities import Analysis, Quantity, ends, means, numbers_of
from openrlhf_shear.report.weighted import Ordered, problem_codes, ratio, sums

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
    distance, accuracy, correct = (prefixes[name].to_numpy() for name in ("distance", "accuracy", "correct"))
    cells, edges = _bins(distance, bins)
    sample = _Sample(prefixes, cells, max(len(edges) - 1, 0), *problem_codes(prefixes["problem"]))
    (of_all, statistics), (within, of_problems) = _aucs(sample), _aucs_within(sample)
    estimates = bootstrap.estimates(of_all, statistics) | bootstrap.estimates(within, of_problems)
    numbers = numbers_of([*of_all, *within], estimates)
    count_levels = min(completions, MOST_LEVELS)
    level = (accuracy * count_levels).round().astype(int)
    outcome, shape = 2 * cells + correct, (sample.number, 2 * sample.bins)
    of_bins = [
        means("distance", distance, sample.problems, cells, sample.shape, needs="a prefix"),
        means("accuracy", accuracy, sample.problems, outcome, shape, needs="a prefix", span=1.0),
        _densities(sample, outcome, level, count_levels + 1),
    ]
    of_bin = bootstrap.estimates(of_bins)
    aucs = [estimates.pop(name) for name in ("by_bin", "by_position", "by_problem")]
    size = count_levels + 1
    density = [of_bin["density"][at : at + size] for at in range(0, len(of_bin["density"]), size)]
    made = [
        Bin(
            *(edges[b], edges[b + 1], of_bin["distance"][b], *(auc[b] for auc in aucs)),
            accuracy_correct=of_bin["accuracy"][2 * b + 1],
            accuracy_incorrect=of_bin["accuracy"][2 * b],
            density_correct=density[2 * b + 1],
            density_incorrect=density[2 * b],
        )
        for b in range(sample.bins)
    ]
    levels = (np.arange(size) / count_levels).tolist()
    points = prefixes[["distance", "accuracy", "correct"]]
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


@dataclass(frozen=True)
class _Sample:
    """Prefixes, the bin and the problem of each, and how many there are of both."""

    prefixes: pandas.DataFrame
    cells: np.ndarray
    bins: int
    problems: np.ndarray
    number: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.number, self.bins

    def both_ends(self, rows: np.ndarray) -> np.ndarray:
        """(P,) of (P, n) rows those of the first and the last bin."""
        return rows[:, 0] + rows[:, -1] if self.bins > 1 else rows.sum(axis=1)


def _aucs(sample: _Sample) -> tuple[list[Quantity], Callable]:
    """How many prefixes each outcome has, and their AUCs: of all prefixes, by bin, and by bin at fixed position."""
    prefixes, cells, problems, n = sample.prefixes, sample.cells, sample.problems, sample.bins
    correct = prefixes["correct"].to_numpy(dtype=bool)
    positions = pandas.factorize(prefixes["position"])[0]
    wide = int(positions.max(initial=-1)) + 1
    by_bin = Ordered(prefixes["accuracy"], cells)
    by_position = Ordered(prefixes["accuracy"], cells * wide + positions)
    everywhere, distance = Ordered(prefixes["accuracy"]), Ordered(prefixes["distance"])
    bin_of = np.arange(by_position.strata) // max(wide, 1)

    def aucs(weights: np.ndarray) -> dict[str, np.ndarray]:
        weights = weights[problems]
        fixed = (np.bincount(bin_of, part, n) for part in by_position.wins(correct, weights))
        return {
            "all": ratio(*everywhere.wins(correct, weights)),
            "distance": ratio(*distance.wins(~correct, weights)),
            "bin": ratio(*by_bin.wins(correct, weights)),
            "fixed": ratio(*fixed),
        }

    rows = sums(problems, cells, None, sample.shape)
    whole, both = rows.sum(axis=1), sample.both_ends(rows)
    spans = [np.bincount(problems[of], minlength=sample.number) for of in (correct, ~correct)]
    of = partial(Quantity, needs="prefixes of correct and of incorrect rollouts")
    text, rise = "AUC of accuracy", "AUC of accuracy, last minus first bin"
    extremes = ends(f"{text}, bin of the smallest distances", f"{text}, bin of the largest distances", n)
    low, high = PAPER_AUC
    rises = (round(high - low, 2), rise, f"{rise}, pairs at the same position") if n > 1 else [None] * 3
    titles = [f"Prefixes of originally {outcome} rollouts" for outcome in ("correct", "incorrect")]
    quantities = [
        Quantity("spans_correct", None, spans[0], paper=PAPER_SPANS[0], what=titles[0]),
        Quantity("spans_incorrect", None, spans[1], paper=PAPER_SPANS[1], what=titles[1]),
        of("auc", itemgetter("all"), whole, span=1.0, what=f"{text} between them, all distances"),
        of("distance_auc", itemgetter("distance"), whole, span=1.0, what="AUC of the distance between them"),
        of("by_bin", itemgetter("bin"), rows, span=1.0, paper=ends(low, high, n), what=extremes),
        of("rise", lambda m: m["bin"][-1] - m["bin"][0], both, span=2.0, paper=rises[0], what=rises[1]),
        of("by_position", itemgetter("fixed"), rows, span=1.0),
        of("rise_position", lambda m: m["fixed"][-1] - m["fixed"][0], both, span=2.0, what=rises[2]),
    ]
    return quantities, aucs


def _aucs_within(sample: _Sample) -> tuple[list[Quantity], Callable]:
    """AUCs by bin, and their rise, of pairs of the same problem at the same position."""
    prefixes, cells, problems, n = sample.prefixes, sample.cells, sample.problems, sample.bins
    strata = strata_of(prefixes.assign(bin=cells), ["bin", "problem", "position"])
    correct, everything = prefixes["correct"].to_numpy(dtype=bool), np.ones(len(prefixes))
    won, pairs = Ordered(prefixes["accuracy"], strata).wins(correct, everything)
    _, first = np.unique(strata, return_index=True)
    paired = np.where(pairs[strata] > 0, cells, -1)
    # a problem's copies are no pairs of each other, so both are linear in its weight
    won, pairs = (sums(problems[first], cells[first], of, sample.shape) for of in (won, pairs))

    def aucs(weights: np.ndarray) -> np.ndarray:
        return ratio(weights @ won, weights @ pairs)

    rows = sums(problems, paired, None, sample.shape)
    of = partial(Quantity, needs="prefixes of correct and of incorrect rollouts at the same position")
    text = "AUC of accuracy within a problem, pairs at the same position"
    extremes = ends(f"{text}, bin of the smallest distances", f"{text}, bin of the largest distances", n)
    rise = f"{text}, last minus first bin" if n > 1 else None
    quantities = [
        of("by_problem", lambda auc: auc, rows, span=1.0, what=extremes),
        of("rise_problem", lambda auc: auc[-1] - auc[0], sample.both_ends(rows), span=2.0, what=rise),
    ]
    return quantities, aucs


def _densities(sample: _Sample, cells: np.ndarray, level: np.ndarray, levels: int) -> Quantity:
    """Of each of 2n cells the share of its rows at each level; each share rests on the rows of its cell."""
    n = 2 * sample.bins
    rows = sums(sample.problems, cells * levels + level, None, (sample.number, n * levels))

    def shares(weights: np.ndarray) -> np.ndarray:
        at = (weights @ rows).reshape(n, levels)
        return ratio(at, np.broadcast_to(at.sum(axis=1, keepdims=True), at.shape)).ravel()

    of_cell = np.repeat(rows.reshape(sample.number, n, levels).sum(axis=2), levels, axis=1)
    return Quantity("density", shares, of_cell, needs="a prefix", span=1.0)
