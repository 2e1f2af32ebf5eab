"""Section 5.1: the larger the distance, the better accuracy tells prefixes of correct rollouts from those of incorrect.

Bins hold about as many prefixes each, cut at quantiles of the distance. In a bin b,

    AUC_b = P(Acc(correct prefix) > Acc(incorrect prefix)) + P(equal) / 2

Bins are not matched in position: if large distances are late ones, where little is left to go wrong, AUC_b rises
without any doing of the distance. So the AUC of pairs of prefixes at the same position stands beside it.

Nor are they matched in problem: distances are large where few rollouts oppose, so in problems that nearly always end as
this rollout did (see `within`). So the AUC of pairs of one problem at the same position stands there too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.within import strata_of
from openrlhf_shear.report.estimates import Bootstrap, Estimate, count
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
class Separation:
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

    @property
    def numbers(self) -> dict[str, Estimate]:
        within = "AUC of accuracy within a problem, pairs at the same position"
        numbers = {
            "Prefixes of originally correct rollouts": self.spans_correct,
            "Prefixes of originally incorrect rollouts": self.spans_incorrect,
            "AUC of accuracy between them, all distances": self.auc,
            "AUC of the distance between them": self.distance_auc,
        }
        if len(self.bins) > 1:
            numbers |= {
                "AUC of accuracy, bin of the smallest distances": self.bins[0].auc,
                "AUC of accuracy, bin of the largest distances": self.bins[-1].auc,
                "AUC of accuracy, last minus first bin": self.rise,
                "AUC of accuracy, last minus first bin, pairs at the same position": self.rise_position,
                f"{within}, bin of the smallest distances": self.bins[0].auc_problem,
                f"{within}, bin of the largest distances": self.bins[-1].auc_problem,
                f"{within}, last minus first bin": self.rise_problem,
            }
        return numbers


def separation(prefixes: pandas.DataFrame, completions: int, bootstrap: Bootstrap, bins: int = 10) -> Separation:
    """AUC, accuracy by outcome and densities in bins of distance.

    Args:
        completions: asked for a prefix; accuracy has this many levels and 0, at most 33.
        bins: fewer are made where less than 20 prefixes would be in one, or distances are equal.
    """
    distance, correct = prefixes["distance"].to_numpy(), prefixes["correct"].to_numpy(dtype=bool)
    cells, edges = _bins(distance, bins)
    n = len(edges) - 1 if len(edges) else 0
    problems, number = problem_codes(prefixes["problem"])
    aucs = _aucs(prefixes, cells, n, problems, number, bootstrap)
    *of_problem, rise_problem = _aucs_within(prefixes, cells, n, problems, number, bootstrap)
    outcome = 2 * cells + correct
    accuracy = _means(problems, number, outcome, 2 * n, prefixes["accuracy"].to_numpy(), 1.0, bootstrap)
    distances = _means(problems, number, cells, n, distance, None, bootstrap)
    count_levels = min(completions, MOST_LEVELS)
    level = (prefixes["accuracy"].to_numpy() * count_levels).round().astype(int)
    densities = _densities(problems, number, outcome, 2 * n, level, count_levels + 1, bootstrap)
    made = [
        Bin(edges[b], edges[b + 1], distances[b], aucs[b], aucs[n + b], of_problem[b], accuracy[2 * b + 1],
            accuracy[2 * b], densities[2 * b + 1], densities[2 * b])
        for b in range(n)
    ]  # fmt: skip
    spans = [count(np.bincount(problems[of], minlength=number)) for of in (correct, ~correct)]
    spans = [Estimate(**{**vars(span), "paper": paper}) for span, paper in zip(spans, PAPER_SPANS, strict=True)]
    levels = (np.arange(count_levels + 1) / count_levels).tolist()
    rises, rest = aucs[2 * n : 2 * n + 2], aucs[2 * n + 2 :]
    return Separation(made, *rises, rise_problem, *rest, *spans, levels, prefixes[["distance", "accuracy", "correct"]])


def _bins(distance: np.ndarray, bins: int) -> tuple[np.ndarray, list[float]]:
    """(N,) the bin of each row, and the bins' edges."""
    if not len(distance):
        return np.zeros(0, dtype=int), []
    bins = max(1, min(bins, len(distance) // FEWEST_ROWS))
    edges = np.unique(np.quantile(distance, np.linspace(0, 1, bins + 1)))
    if len(edges) == 1:
        edges = np.repeat(edges, 2)
    return np.searchsorted(edges[1:-1], distance, side="right"), edges.tolist()


def _aucs(
    prefixes: pandas.DataFrame, cells: np.ndarray, n: int, problems: np.ndarray, number: int, bootstrap: Bootstrap
) -> list[Estimate]:
    """(2n + 4): by bin, by bin at fixed position, the rise of both, of all prefixes, of the distance."""
    correct = prefixes["correct"].to_numpy(dtype=bool)
    positions = pandas.factorize(prefixes["position"])[0]
    wide = int(positions.max(initial=-1)) + 1
    by_bin = Ordered(prefixes["accuracy"], cells)
    by_position = Ordered(prefixes["accuracy"], cells * wide + positions)
    everywhere, distance = Ordered(prefixes["accuracy"]), Ordered(prefixes["distance"])

    def statistic(weights: np.ndarray) -> np.ndarray:
        weights = weights[problems]
        of_bin = ratio(*by_bin.wins(correct, weights))
        of_position = [np.bincount(np.arange(by_position.strata) // wide, part, n) for part in
                       by_position.wins(correct, weights)]  # fmt: skip
        of_position = ratio(*of_position)
        rises = [of_bin[-1] - of_bin[0], of_position[-1] - of_position[0]]
        rest = [ratio(*everywhere.wins(correct, weights))[0], ratio(*distance.wins(~correct, weights))[0]]
        return np.concatenate([of_bin, of_position, rises, rest])

    rows = sums(problems, cells, None, (number, n))
    ends = (rows[:, :1] + rows[:, -1:]) if n > 1 else rows.sum(axis=1, keepdims=True)
    whole = rows.sum(axis=1, keepdims=True)
    bases = np.hstack([rows, rows, ends, ends, whole, whole])
    papers = [None] * (2 * n + 4)
    if n > 1:
        papers[0], papers[n - 1], papers[2 * n] = *PAPER_AUC, round(PAPER_AUC[1] - PAPER_AUC[0], 2)
    spans = [1.0] * (2 * n) + [2.0, 2.0, 1.0, 1.0]
    return bootstrap.estimates(statistic, bases, "prefixes of correct and of incorrect rollouts", spans, papers)


def _aucs_within(
    prefixes: pandas.DataFrame, cells: np.ndarray, n: int, problems: np.ndarray, number: int, bootstrap: Bootstrap
) -> list[Estimate]:
    """(n + 1): by bin, and the rise, of pairs of the same problem at the same position."""
    correct = prefixes["correct"].to_numpy(dtype=bool)
    strata = strata_of(prefixes.assign(bin=cells), ["bin", "problem", "position"])
    won, pairs = Ordered(prefixes["accuracy"], strata).wins(correct, np.ones(len(prefixes)))
    _, first = np.unique(strata, return_index=True)
    paired = np.where(pairs[strata] > 0, cells, -1)
    # a problem's copies are no pairs of each other, so both are linear in its weight
    won, pairs = (sums(problems[first], cells[first], of, (number, n)) for of in (won, pairs))

    def statistic(weights: np.ndarray) -> np.ndarray:
        of_bin = ratio(weights @ won, weights @ pairs)
        return np.append(of_bin, of_bin[-1] - of_bin[0])

    rows = sums(problems, paired, None, (number, n))
    ends = (rows[:, :1] + rows[:, -1:]) if n > 1 else rows.sum(axis=1, keepdims=True)
    needs = "prefixes of correct and of incorrect rollouts at the same position"
    return bootstrap.estimates(statistic, np.hstack([rows, ends]), needs, [1.0] * n + [2.0])


def _means(
    problems: np.ndarray, number: int, cells: np.ndarray, n: int, values: np.ndarray, span: float | None,
    bootstrap: Bootstrap,
) -> list[Estimate]:  # fmt: skip
    rows, total = sums(problems, cells, None, (number, n)), sums(problems, cells, values, (number, n))
    return bootstrap.estimates(lambda weights: ratio(weights @ total, weights @ rows), rows, "a prefix", span)


def _densities(
    problems: np.ndarray, number: int, cells: np.ndarray, n: int, level: np.ndarray, levels: int, bootstrap: Bootstrap
) -> list[list[Estimate]]:
    """Of each of n cells the share of its rows at each level; each share rests on the rows of its cell."""
    rows = sums(problems, cells * levels + level, None, (number, n * levels))

    def statistic(weights: np.ndarray) -> np.ndarray:
        at = (weights @ rows).reshape(n, levels)
        return ratio(at, np.broadcast_to(at.sum(axis=1, keepdims=True), at.shape)).ravel()

    bases = np.repeat(rows.reshape(number, n, levels).sum(axis=2), levels, axis=1)
    shares = bootstrap.estimates(statistic, bases, "a prefix", 1.0)
    return [shares[c * levels : (c + 1) * levels] for c in range(n)]
