"""Section 5.1: the larger the distance, the better accuracy separates prefixes of correct and incorrect rollouts.

Bins hold about as many prefixes each, cut at quantiles of the distance. In a bin b,

    AUC_b = P(Acc(correct prefix) > Acc(incorrect prefix)) + P(equal) / 2

Bins are not matched in position: large distances may be late ones, where little is left to go wrong. Nor are they
matched in problem: distances are large where few rollouts oppose (see `within_problems`). So the AUCs of pairs of
prefixes at the same position, and of those of one problem, stand beside it.

Legend: N prefixes, P problems, n bins.
"""

from collections.abc import Callable
from functools import partial
from operator import itemgetter

import numpy as np
import pandas

from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity, ends, parts, smaller
from openrlhf_shear.report.rows import Ordered, Rows, ratio, sums

PAPER_AUC = (0.65, 0.97)  # "approximately 0.65 at low", "above 0.97 at high"
PAPER_SPANS = (23_704, 21_352)
FEWEST_ROWS = 20  # in a bin
MOST_LEVELS = 32  # of accuracy above 0


def separation(prefixes: pandas.DataFrame, completions: int, bootstrap: Bootstrap, bins: int = 10) -> Analysis:
    """Return AUC, accuracy by outcome and densities in bins of distance.

    bins: ascending. A bin has the prefixes with distance in [`low`, `high`); the last bin includes its end. It has the
        means of `distance`, `accuracy_correct` and `accuracy_incorrect`, and:
        `auc`: of accuracy, correct against incorrect.
        `auc_position`: of pairs at the same position only.
        `auc_problem`: of pairs of the same problem and position only; its counts are of prefixes in such a pair.
        `density_correct`, `density_incorrect`: the share of that outcome's prefixes at each level of accuracy.
    rise, rise_position, rise_problem: such an AUC of the last bin minus that of the first.
    auc: over all prefixes.
    distance_auc: of the distance itself, incorrect against correct. Does it alone tell the outcome? 0.5 is chance.
    spans_correct, spans_incorrect: the numbers of prefixes.
    levels: accuracies of the densities; a prefix counts for the nearest level.

    The table is of prefixes: distance, accuracy, correct.

    Args:
        completions: requested for each prefix; accuracy has this many levels and 0, at most 33.
        bins: fewer are made where a bin would have less than 20 prefixes, or distances are equal.
    """
    rows = Rows(prefixes)
    cells, edges = _bins(rows["distance"], bins)
    n = max(len(edges) - 1, 0)
    aucs = bootstrap.estimates(*_aucs(rows, cells, n))
    most, outcome = min(completions, MOST_LEVELS), 2 * cells + rows.correct
    level = (rows["accuracy"] * most).round().astype(int)
    of = partial(rows.means, needs="a prefix")
    by_cell = bootstrap.estimates(
        [
            of("distance", "distance", cells, n),
            of("accuracy", "accuracy", outcome, 2 * n, span=1.0),
            _densities(rows, outcome, 2 * n, level, most + 1),
        ]
    )
    density = [by_cell.density[at : at + most + 1] for at in range(0, len(by_cell.density), most + 1)]
    of_bins = parts(
        low=edges[:-1],
        high=edges[1:],
        distance=by_cell.distance,
        auc=aucs.by_bin,
        auc_position=aucs.by_position,
        auc_problem=aucs.by_problem,
        accuracy_correct=by_cell.accuracy[1::2],
        accuracy_incorrect=by_cell.accuracy[::2],
        density_correct=density[1::2],
        density_incorrect=density[::2],
    )
    names = ("rise", "rise_position", "rise_problem", "auc", "distance_auc", "spans_correct", "spans_incorrect")
    entries = {"bins": of_bins, **{name: aucs[name] for name in names}, "levels": (np.arange(most + 1) / most).tolist()}
    return Analysis(entries, aucs.numbers, prefixes[["distance", "accuracy", "correct"]])


def _bins(distance: np.ndarray, bins: int) -> tuple[np.ndarray, list[float]]:
    """Return (N,) the bin of each row, and the n + 1 edges of bins; no edges without rows."""
    if not len(distance):
        return np.zeros(0, dtype=int), []
    bins = max(1, min(bins, len(distance) // FEWEST_ROWS))
    edges = np.unique(np.quantile(distance, np.linspace(0, 1, bins + 1)))
    if len(edges) == 1:
        edges = np.repeat(edges, 2)
    return np.searchsorted(edges[1:-1], distance, side="right"), edges.tolist()


def _aucs(rows: Rows, cells: np.ndarray, n: int) -> tuple[list[Quantity], Callable]:
    """Return the numbers of prefixes and the AUCs: over all prefixes, and by bin for three kinds of pairs."""
    correct, accuracy, positions = rows.correct, rows["accuracy"], rows.strata("position")
    wide = int(positions.max(initial=0)) + 1
    everywhere, distance = Ordered(accuracy), Ordered(rows["distance"])
    by_bin, by_position = Ordered(accuracy, cells), Ordered(accuracy, cells * wide + positions)
    bin_of = np.arange(by_position.strata) // wide
    won, pairs, paired = _within_problems(rows, cells, n)

    def aucs(weights: np.ndarray) -> dict[str, np.ndarray]:
        of_rows = weights[rows.problems]
        fixed = (np.bincount(bin_of, part, n) for part in by_position.wins(correct, of_rows))
        return {
            "all": ratio(*everywhere.wins(correct, of_rows)),
            "distance": ratio(*distance.wins(~correct, of_rows)),
            "bin": ratio(*by_bin.wins(correct, of_rows)),
            "position": ratio(*fixed),
            "problem": ratio(weights @ won, weights @ pairs),
        }

    needs, text = "prefixes of correct and of incorrect rollouts", "AUC of accuracy"
    small, large, rise = "bin of the smallest distances", "bin of the largest distances", "last minus first bin"
    at_position, within = "pairs at the same position", f"{text} within a problem, pairs at the same position"
    of_bin, whole, (low, high) = rows.sums(cells, n), rows.counts(rows.every), PAPER_AUC
    papers, of_problem = (low, high, round(high - low, 2)), [f"{within}, {part}" for part in (small, large, rise)]
    quantities = [
        Quantity(f"spans_{name}", None, rows.counts(part), paper=paper, what=f"Prefixes of originally {name} rollouts")
        for name, part, paper in zip(("correct", "incorrect"), (correct, ~correct), PAPER_SPANS, strict=True)
    ] + [
        Quantity("auc", itemgetter("all"), whole, needs, 1.0, what=f"{text} between them, all distances"),
        Quantity("distance_auc", itemgetter("distance"), whole, needs, 1.0, what="AUC of the distance between them"),
        *_by_bin("bin", "", of_bin, needs, [f"{text}, {part}" for part in (small, large, rise)], papers),
        *_by_bin("position", "_position", of_bin, needs, [None, None, f"{text}, {rise}, {at_position}"]),
        *_by_bin("problem", "_problem", paired, f"{needs} at the same position", of_problem),
    ]
    return quantities, aucs


def _by_bin(
    kind: str, name: str, rows: np.ndarray, needs: str, titles: list[str | None], papers: tuple = (None,) * 3
) -> list[Quantity]:
    """Return the bins' AUCs of a kind of pairs, and their rise.

    Args:
        name: the end of the rise's name.
        rows: (P, n).
        titles, papers: of the first bin, of the last bin, and of the rise.
    """
    n = rows.shape[1]
    behind = smaller(rows[:, 0], rows[:, -1]) if n > 1 else rows.sum(axis=1)
    title, paper = (titles[2], papers[2]) if n > 1 else (None, None)
    rise, risen = (lambda of: of[kind][-1] - of[kind][0]), needs
    if n < 2:
        rise, risen = (lambda of: np.nan), "two bins of distance"
    return [
        Quantity(f"by_{kind}", itemgetter(kind), rows, needs, 1.0, ends(*papers[:2], n), ends(*titles[:2], n)),
        Quantity(f"rise{name}", rise, behind, risen, 2.0, paper, title),
    ]


def _within_problems(rows: Rows, cells: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three (P, n) counts by bin: pairs won by the correct prefix, all pairs, and prefixes in a pair.

    A pair is of the same problem at the same position. A problem's bootstrap copies form no pairs with each other, so
    all counts are linear in its weight.
    """
    strata = Rows(rows.frame.assign(bin=cells)).strata("bin", "problem", "position")
    of_strata = Ordered(rows["accuracy"], strata).wins(rows.correct, np.ones(len(cells)))
    _, first = np.unique(strata, return_index=True)
    won, pairs = (sums(rows.problems[first], cells[first], of, (rows.number, n)) for of in of_strata)
    return won, pairs, rows.sums(np.where(of_strata[1][strata] > 0, cells, -1), n)


def _densities(rows: Rows, cells: np.ndarray, n: int, level: np.ndarray, levels: int) -> Quantity:
    """Return, for each of n cells, the share of its rows at each level; each share counts the rows of its cell."""
    at_level = rows.sums(cells * levels + level, n * levels)

    def shares(weights: np.ndarray) -> np.ndarray:
        at = (weights @ at_level).reshape(n, levels)
        return ratio(at, np.broadcast_to(at.sum(axis=1, keepdims=True), at.shape)).ravel()

    of_cell = np.repeat(at_level.reshape(rows.number, n, levels).sum(axis=2), levels, axis=1)
    return Quantity("density", shares, of_cell, needs="a prefix", span=1.0)
