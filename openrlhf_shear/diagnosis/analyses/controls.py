"""Controls of the distance: early and late prefixes, truncation, single positions, single problems, noise.

Legend: N prefixes, P problems, n cells.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import log, sqrt
from operator import itemgetter

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.trend import known_errors
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity, ends, parts, smaller
from openrlhf_shear.report.rows import Rows, not_alone, ratio
from openrlhf_shear.rollouts.localisation import PAPER_LAST_FIRST
from openrlhf_shear.rollouts.record import Rollout

PAPER_QUARTILES = (0.67, 0.75)  # "Theoretical Analysis", first assumption; their ratio is `PAPER_LAST_FIRST`
NEEDS = "prefixes at different positions"
PAPER_RHO = (-0.055, -0.225)  # of the paper's first and last groups


def quartiles(prefixes: pandas.DataFrame, bootstrap: Bootstrap) -> Analysis:
    """Does the distance grow along the chain? Return mean distances of early and late prefixes, and last - first.

    first, last, difference: prefixes up to the first and from the third quartile of all prefix positions. This is our
        reading: the paper gives values for the "first quartile of prefix positions" and does not define the cut.
    first_own, last_own, difference_own: prefixes in the first and last quarter of their rollout's prefixes, so that
        every rollout counts in both. A rollout with a single prefix counts in neither.
    ratio: last / first.
    """
    rows, (first, last) = Rows(prefixes), PAPER_QUARTILES
    of_rollout = prefixes.groupby(["problem", "sample"])["position"]
    own = (of_rollout.rank().to_numpy() - 0.5) / of_rollout.transform("size").to_numpy()
    cells = [(_quartiles(rows["position"]), 2), (_ends(own, 0.25, 0.75), 2)]
    counts, distances = _in_cells(rows, cells, rows["distance"], None)
    papers, quantities = (first, last, round(last - first, 2)), []
    for at, name, part, paper in (
        (0, "", "quartile of prefix positions", papers),
        (2, "_own", "quarter of each rollout", (None,) * 3),
    ):
        titles = [*(f"Mean distance in the {end} {part}" for end in ("first", "last")), f"Last minus first {part}"]
        quantities += _first_last(at, name, counts, titles, papers=paper)
    what = "Last over first quartile of prefix positions, mean distances"
    counted = smaller(counts[:, 0], counts[:, 1])
    over = Quantity("ratio", lambda of: ratio(of[1], of[0]), counted, NEEDS, None, PAPER_LAST_FIRST, what)
    return bootstrap.estimates([*quantities, over], distances)


def truncation(prefixes: pandas.DataFrame, bootstrap: Bootstrap) -> Analysis:
    """Does the token limit cut more late continuations? Return shares of those with a verdict; rows are prefixes.

    A cut continuation is mostly graded wrong. So where truncation grows with the position, accuracy falls with it,
    whatever the reasoning. Each continuation has a separate token budget, up to the model's last position.

    every: over all prefixes.
    first, last, difference: over the prefixes that `quartiles` compares.
    """
    rows, text = Rows(prefixes), "Completions that ended at the token limit"
    cells = [(np.zeros(len(prefixes), dtype=int), 1), (_quartiles(rows["position"]), 2)]
    counts, shares = _in_cells(rows, cells, rows["truncated"], rows["completions"])
    ends = "first quartile of prefix positions", "last quartile of prefix positions", "last minus first quartile"
    every = Quantity("every", itemgetter(0), counts[:, 0], NEEDS, 1.0, what=text)
    parts = _first_last(1, "", counts, [f"{text}, {end}" for end in ends], spans=(1.0, 1.0, 2.0))
    return bootstrap.estimates([every, *parts], shares)


def _in_cells(
    rows: Rows, cells: list[tuple[np.ndarray, int]], above: np.ndarray, below: np.ndarray | None
) -> tuple[np.ndarray, Callable]:
    """Return (P, n) rows of each cell, and the function from weights to (n,) ratios of `above` to `below` (or rows)."""
    tables = [np.hstack([rows.sums(cell, n, values) for cell, n in cells]) for values in (None, above, below)]
    return tables[0], lambda weights: ratio(weights @ tables[1], weights @ tables[2])


def _first_last(
    at: int, name: str, counts: np.ndarray, titles: list[str], papers: tuple = (None,) * 3, spans: tuple = (None,) * 3
) -> list[Quantity]:
    """Return the quantities of cell `at`, of the next cell, and of the second minus the first."""
    early, late = counts[:, at], counts[:, at + 1]
    kinds = (
        ("first", itemgetter(at), early),
        ("last", itemgetter(at + 1), late),
        ("difference", lambda of: of[at + 1] - of[at], smaller(early, late)),
    )
    return [
        Quantity(end + name, of, on, NEEDS, span, paper, what)
        for (end, of, on), span, paper, what in zip(kinds, spans, papers, titles, strict=True)
    ]


def _quartiles(position: np.ndarray) -> np.ndarray:
    """Return (N,) 0 up to the first quartile of positions, 1 from the third, else -1; all -1 if the two are equal."""
    return _ends(position, *(np.quantile(position, [0.25, 0.75]) if len(position) else (0, 0)))


def _ends(place: np.ndarray, first: float, last: float) -> np.ndarray:
    """Return (N,) 0 up to `first`, 1 from `last`, else -1; all -1 if the two are equal."""
    if not first < last:
        return np.full(len(place), -1)
    return np.where(place <= first, 0, np.where(place >= last, 1, -1))


def position_control(prefixes: pandas.DataFrame, bootstrap: Bootstrap, groups: int = 4, quantiles: int = 5) -> Analysis:
    """Appendix A: is the distance only a clock?

    Distance and accuracy both change along the chain, and so correlate over all prefixes. The paper's control is
    groups of positions with about as many prefixes each; such a group still spans many positions.

    groups: ascending in position, of prefixes with `first` <= position <= `last`. Each has `rho` of distance and
        accuracy, `rho_fixed` of their ranks within single positions, and the means of `distance` and `accuracy` by
        quantile of distance within the group, ascending.
    rho: over all prefixes, the clock included.
    rho_fixed: of ranks within single positions.
    rho_fixed_correct, rho_fixed_incorrect: the same, of prefixes of one outcome.

    Args:
        groups, quantiles: fewer are made where positions or distances are equal.
    """
    rows, position = Rows(prefixes), prefixes["position"].to_numpy()
    fixed = rows.strata("position")
    of = partial(rows.rho, columns=("distance", "accuracy"), needs="distances and accuracies that differ")
    both, at_fixed = "rho of distance and accuracy", "rho at fixed position"
    quantities = [of("rho", rows.every, what=f"{both}, all prefixes")]
    for outcome, (part, whose) in rows.outcomes().items():
        what = at_fixed + whose if outcome else f"{both} at fixed position"
        quantities.append(of(f"rho_fixed{outcome}", part, fixed, what=what))
    group = _quantiles(position, groups)
    members = [group == g for g in range(int(group.max(initial=-1)) + 1)]
    ranges = [(int(position[own].min()), int(position[own].max())) for own in members]
    for g, (own, paper) in enumerate(zip(members, ends(*PAPER_RHO, len(members)), strict=True)):
        where = "positions {} to {}".format(*ranges[g])
        quantities.append(of(f"rho {g}", own, paper=paper, what=f"{both}, {where}"))
        quantities.append(of(f"rho_fixed {g}", own, fixed, what=f"{at_fixed}, {where}"))
    estimates = bootstrap.estimates(quantities)
    of_groups = parts(
        first=[first for first, _ in ranges],
        last=[last for _, last in ranges],
        rho=[estimates.pop(f"rho {g}") for g in range(len(ranges))],
        rho_fixed=[estimates.pop(f"rho_fixed {g}") for g in range(len(ranges))],
    )
    for part, own in zip(of_groups, members, strict=True):
        part |= _by_quantile(prefixes[own], quantiles, bootstrap)
    return Analysis({"groups": of_groups, **estimates}, estimates.numbers)


def _quantiles(values: np.ndarray, number: int) -> np.ndarray:
    """Return (N,) the index of each value among `number` about equal parts, without gaps; equal values share a part."""
    if not len(values):
        return np.zeros(0, dtype=int)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, number + 1)[1:-1]))
    return np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)[1]


def _by_quantile(prefixes: pandas.DataFrame, quantiles: int, bootstrap: Bootstrap) -> Analysis:
    """Return mean distance and mean accuracy by quantile of distance."""
    rows, cells = Rows(prefixes), _quantiles(prefixes["distance"].to_numpy(), quantiles)
    of = partial(rows.means, cells=cells, n=int(cells.max(initial=-1)) + 1, needs="a prefix")
    return bootstrap.estimates([of("distance", "distance"), of("accuracy", "accuracy", span=1.0)])


def opposing_rollouts(prefixes: pandas.DataFrame, rollouts: Iterable[Rollout]) -> np.ndarray:
    """Return (N,) how many graded rollouts of the prefix's group have the other outcome."""
    number = Counter((rollout.group, rollout.correct) for rollout in rollouts)
    pairs = zip(prefixes["problem"], prefixes["correct"], strict=True)
    return np.array([number[problem, not correct] for problem, correct in pairs], dtype=int)


def within_problems(prefixes: pandas.DataFrame, opposing: np.ndarray, bootstrap: Bootstrap) -> Analysis:
    """Is it the problem and not the prefix? Return Spearman's rhos within problems.

    Each is over all prefixes, over those of originally correct and over those of originally incorrect rollouts.

    The distance is a minimum over the spans of all opposing rollouts, so it falls with their number. Correct rollouts
    of an easy problem oppose few incorrect ones: a large distance and a high accuracy. Incorrect rollouts of a hard
    problem mirror that. So pooled over problems the two outcomes have rhos of opposite sign, even if the distance knows
    nothing of a prefix. Prefixes of one outcome, problem and position have the very same opposing rollouts. Those of
    both outcomes do not, which leaves some of the confound in `rho`.

    rho, rho_correct, rho_incorrect: of distance and accuracy, ranks within a problem and position. The counts are of
        prefixes with at least one other to compare with.
    opposing, opposing_correct, opposing_incorrect: of distance and number of opposing rollouts, ranks within a
        position, over problems. It shows how far that number alone decides the distance.

    Args:
        opposing: (N,) of `opposing_rollouts`.
    """
    rows, quantities = Rows(prefixes.assign(opposing=opposing)), []
    for name, other, keys, text in (
        ("rho", "accuracy", ("problem", "position"), "accuracy within a problem,"),
        ("opposing", "opposing", ("position",), "number of opposing rollouts"),
    ):
        strata, what = rows.strata(*keys), f"rho of distance and {text} at fixed position"
        of = partial(rows.rho, columns=("distance", other), needs="prefixes that differ and can be compared")
        for outcome, (part, whose) in rows.outcomes().items():
            quantities.append(of(name + outcome, not_alone(part, strata), strata, what=what + whose))
    return bootstrap.estimates(quantities)


def noise_floor(
    prefixes: pandas.DataFrame,
    first_errors: Mapping[tuple[str, int], int],
    window: int,
    largest_norm: float,
    bootstrap: Bootstrap,
    risk: float = 0.05,
) -> Analysis:
    """Section 4 and appendix C: does the distance to the opposing side exceed that of two samples of one kind?

        eta      = E[W] of two spans of the same population; here the mean distance to rollouts of the same outcome
        D(S)     >= E[W] - eta and <= E[W] + eta, of the populations of a span and of the opposing side
        theorem  D(S) > 2 eta, which holds where E[W] > 3 eta
        McDiarmid: each empirical span is further than on average + u from its population with a chance of at most
                 risk = exp(-n u^2 / (2 M^2)), so u = M sqrt(2 ln(1 / risk) / n); both sides: 2 u

    The theory assumes independent tokens and one pair of spans. Both distances are minima over spans, which lowers them
    alike only where the numbers of rollouts are equal. Rows are prefixes that have both distances.

    eta, opposing: mean distances, in units of nbar.
    ratio_low, ratio_high: of D(S) to eta, at least and at most, by the means; the theorem needs 2.
    separated: the share of prefixes with W > 3 eta.
    sure: the share with W > 3 eta + 2 u, with McDiarmid's u at `risk` a side.
    before, after: mean W of incorrect rollouts' windows that end before the first error and that begin after it.
    same_before, same_after: mean distances of these windows to the same side.
    deviation: u, in units of nbar.
    largest_norm: M.
    risk: as given.

    Args:
        first_errors: (problem, sample) -> token, of rollouts that err.
        window: n, tokens.
        largest_norm: M, of a token, in units of nbar: at least 1.
    """
    prefixes = prefixes[np.isfinite(prefixes["same_distance"])]
    rows = Rows(prefixes)
    opposing, same = rows["distance"], rows["same_distance"]
    u = largest_norm * sqrt(2 * log(1 / risk) / window)
    error = np.where(rows.correct, np.nan, known_errors(prefixes, first_errors))
    end = rows["position"]
    sides = {"before": end <= error, "after": end - window > error}

    def numbers(weights: np.ndarray) -> dict[str, float]:
        w = weights[rows.problems]
        eta, mean = ratio(w @ same, w.sum()), ratio(w @ opposing, w.sum())
        values = {"eta": eta, "opposing": mean}
        values |= {"ratio_low": ratio(mean - eta, eta), "ratio_high": ratio(mean + eta, eta)}
        values |= {"separated": ratio(w @ (opposing > 3 * eta), w.sum())}
        values |= {"sure": ratio(w @ (opposing > 3 * eta + 2 * u), w.sum())}
        for name, part in sides.items():
            values |= {name: ratio(w @ (part * opposing), w @ part), f"same_{name}": ratio(w @ (part * same), w @ part)}
        return values

    titles = {
        "eta": "Noise: mean distance to the same outcome (eta)",
        "opposing": "Noise: mean distance to the other outcome, of the same prefixes",
        "ratio_low": "Noise: D(S) / eta, at least (the theorem needs 2)",
        "ratio_high": "Noise: D(S) / eta, at most",
        "separated": "Noise: prefixes with W > 3 eta",
        "sure": f"Noise: prefixes with W > 3 eta + 2 u, McDiarmid's u = {u:.3f}",
        "before": "Noise: mean distance of windows before the first error",
        "same_before": "... to the same outcome, before",
        "after": "Noise: mean distance of windows after the first error",
        "same_after": "... to the same outcome, after",
    }
    parts = {name: part for side, part in sides.items() for name in (side, f"same_{side}")}
    quantities = [
        Quantity(
            name,
            lambda found, name=name: found[name],
            rows.counts(parts.get(name, rows.every)),
            "prefixes with a distance to the same outcome",
            1.0 if name in ("separated", "sure") else None,
            what=what,
        )
        for name, what in titles.items()
    ]
    estimates = bootstrap.estimates(quantities, numbers)
    return Analysis({**estimates, "deviation": u, "largest_norm": largest_norm, "risk": risk}, estimates.numbers)
