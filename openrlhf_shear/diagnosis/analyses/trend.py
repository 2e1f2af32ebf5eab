"""Section 2: where the distance rises along the reasoning chain, accuracy declines, on the whole and step by step."""

from functools import partial
from operator import itemgetter

import numpy as np
import pandas
from scipy import stats

from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity, parts
from openrlhf_shear.report.rows import Rows, ratio, spearman_of

PAPER_TREND_RHO = -0.96
FEW_POSITIONS = 5
PAPER_CHANGES_RHO = -0.42


def aggregate_trend(prefixes: pandas.DataFrame, bootstrap: Bootstrap, min_problems: int = 10) -> Analysis:
    """Means by position: the curves `every`, `correct` and `incorrect` (of originally such rollouts). The first mixes
    lengths and outcomes: deep positions are reached by long rollouts only, which are wrong more often.

    positions: tokens, ascending
    accuracy, distance: one a position, over all prefixes there
    rho: Spearman's, between the two, over positions
    left_out: positions that too few problems reach
    reach: how many problems a position needed

    Args:
        min_problems: that must reach a position for it to count; of a table with fewer problems, all of them.
    """
    text, curves = "Aggregate trend: rho of mean accuracy and mean distance over positions", Analysis()
    for outcome, (part, whose) in Rows(prefixes).outcomes().items():
        paper = None if outcome else PAPER_TREND_RHO
        curve = _curve(prefixes[part], bootstrap, min_problems, what=text + whose, paper=paper)
        curves[outcome.removeprefix("_") or "every"] = curve
        curves.numbers |= curve.numbers
    return curves


def _curve(prefixes: pandas.DataFrame, bootstrap: Bootstrap, min_problems: int, **of_rho) -> Analysis:
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
    of_rho["caution"] = only if len(positions) < FEW_POSITIONS else None
    quantities = [
        Quantity("accuracy", itemgetter(0), rows, needs, span=1.0),
        Quantity("distance", itemgetter(1), rows, needs),
        Quantity("rho", lambda both: spearman_of(*both), rows.sum(axis=1), needs, 2, **of_rho),
    ]
    made, left_out = bootstrap.estimates(quantities, curves), int((reached < reach).sum())
    return Analysis({"positions": positions.tolist(), **made, "left_out": left_out, "reach": reach}, made.numbers)


def stride_changes(prefixes: pandas.DataFrame, completions: int, stride: int, bootstrap: Bootstrap) -> Analysis:
    """Where accuracy drops within a rollout, does W rise? Between prefixes of a rollout that end at most a stride
    apart,

        dAcc_t = Acc(s_t) - Acc(s_{t-1}),   dW_t = W(s_t) - W(s_{t-1}),   event: |dAcc_t| >= 1 / completions

    An event (appendix A: mutation) need not be a change of reasoning: two draws of 16 completions at the same success
    rate mostly differ by one or more of them.

    threshold: of |dAcc|, for an event
    strides: all pairs of neighbouring prefixes
    rho: of events. rho_correct, rho_incorrect: of events in originally correct and incorrect rollouts
    rho_position: of events, ranks taken among events at the same position
    rho_strides: of all pairs, events or not
    levels: by dAcc (`change`), ascending, the mean dW (`distance`) of its events
    events, events_by_chance: the share of pairs that are events; the same had success never changed, by binomial draws
        alone (exact)
    reliability: the share of the variance of dAcc that is not binomial noise; below 0 where noise explains more.
        attenuation: its root, by which noise alone shrinks any correlation with dAcc over all pairs

    The table is of events: problem, correct, position, d_accuracy, d_distance.

    Args:
        completions: asked for a prefix; the threshold is one of them, whatever number of them has a verdict.
        stride: tokens.
    """
    rows, threshold = Rows(stride_table(prefixes, stride, completions)), 1 / completions
    event = rows["event"].astype(bool)
    of = partial(
        rows.rho, columns=("d_accuracy", "d_distance"), needs="changes of accuracy and of distance that differ"
    )
    text = f"Local association: rho of stride-wise changes, |dAcc| >= {threshold:.4g}"
    papers = {"": PAPER_CHANGES_RHO}
    outcomes = rows.outcomes().items()
    made = bootstrap.estimates(
        [
            *(of(f"rho{o}", event & part, paper=papers.get(o), what=text + whose) for o, (part, whose) in outcomes),
            of("rho_position", event, rows.strata("position"), what=f"{text}, at fixed position"),
            of("rho_strides", rows.every, what="Local association: rho of all stride-wise changes"),
        ]
    )
    noise = _noise(rows, f"Local association: strides with |dAcc| >= {threshold:.4g}", bootstrap)
    events = rows.frame[event].reset_index(drop=True)
    entries = {"threshold": threshold, "strides": len(rows.frame), **made}
    entries |= {"levels": _levels(events, completions, bootstrap), **noise}
    return Analysis(entries, made.numbers | noise.numbers, events)


def _noise(rows: Rows, text: str, bootstrap: Bootstrap) -> Analysis:
    known = np.isfinite(rows["noise"])
    columns = [np.ones(len(known)), rows["event"], rows["chance"]]
    columns += [np.where(known, one, 0) for one in (known, rows["d_accuracy"], rows["d_accuracy"] ** 2, rows["noise"])]
    cell = np.zeros(len(known), dtype=int)
    sums = np.hstack([rows.sums(cell, 1, one.astype(float)) for one in columns])

    def shares(weights: np.ndarray) -> dict[str, float]:
        number, event, chance, n, total, squares, noise = weights @ sums
        left = 1 - ratio(noise, squares - ratio(total**2, n))
        both = {"events": ratio(event, number), "events_by_chance": ratio(chance, number)}
        return both | {"reliability": left, "attenuation": np.sqrt(max(left, 0)) if np.isfinite(left) else np.nan}

    needs = "changes of accuracy, of two completions or more"
    every, of_known = rows.counts(rows.every), rows.counts(known)
    return bootstrap.estimates(
        [
            Quantity("events", itemgetter("events"), every, needs, 1.0, what=text),
            Quantity(
                "events_by_chance",
                itemgetter("events_by_chance"),
                every,
                needs,
                1.0,
                what=f"{text} if success never changed",
            ),
            Quantity(
                "reliability",
                itemgetter("reliability"),
                of_known,
                needs,
                what="Local association: variance of changes that is not binomial noise",
            ),
            Quantity(
                "attenuation",
                itemgetter("attenuation"),
                of_known,
                needs,
                1.0,
                what="Local association: factor of that noise on a correlation",
            ),
        ],
        shares,
    )


def stride_table(prefixes: pandas.DataFrame, stride: int, completions: int) -> pandas.DataFrame:
    """Pairs of neighbouring prefixes: problem, sample, correct, position (of the second), d_accuracy, d_distance;
    `event`; what binomial draws alone do: `noise`, the variance of d_accuracy, p (1 - p) / (n - 1) of each of the two
    (NaN of one completion), and `chance`, the probability of an event had the success rate not changed, given how many
    of the completions of both are correct.
    """
    ordered = prefixes.sort_values(["problem", "sample", "position"], ignore_index=True)
    rollouts = ordered.groupby(["problem", "sample"])
    change = rollouts[["position", "accuracy", "distance"]].diff()
    drawn = ordered["completions"].where(ordered["completions"] > 1)
    ordered["noise"] = ordered["accuracy"] * (1 - ordered["accuracy"]) / (drawn - 1)
    before = rollouts[["noise", "successes", "completions"]].shift()
    neighbours = change["position"].le(stride)  # the first of a rollout has no difference: False
    # rounded, since differences of equal fractions may differ in their last bit, and ranks would tell them apart
    ordered = ordered.assign(
        d_accuracy=change["accuracy"].round(9), d_distance=change["distance"], noise=ordered["noise"] + before["noise"]
    )
    kept = ["problem", "sample", "correct", "position", "d_accuracy", "d_distance", "noise"]
    counts = [ordered["successes"] + before["successes"], before["completions"], ordered["completions"]]
    table, counts = ordered.loc[neighbours, kept], [one[neighbours].to_numpy(dtype=int) for one in counts]
    least = 1 / completions - 1e-9
    table = table.assign(event=table["d_accuracy"].abs() >= least, chance=_chances(*counts, least))
    return table.reset_index(drop=True)


def _chances(correct: np.ndarray, first: np.ndarray, second: np.ndarray, least: float) -> np.ndarray:
    """(N,) P(|k / first - (correct - k) / second| >= least), k of them among the first: hypergeometric, whatever the
    rate that both have.
    """
    cases, which = np.unique(np.column_stack([correct, first, second]), axis=0, return_inverse=True)
    chances = []
    for total, n, m in cases:
        k = np.arange(n + 1)
        differs = np.abs(k / n - (total - k) / m) >= least
        chances.append(stats.hypergeom(n + m, total, n).pmf(k)[differs].sum())
    return np.array(chances, dtype=float)[which.ravel()]


def _levels(events: pandas.DataFrame, completions: int, bootstrap: Bootstrap) -> list[Analysis]:
    change = (events["d_accuracy"] * completions).round().to_numpy() / completions
    levels, cells = np.unique(change, return_inverse=True)
    distance = Rows(events).means("distance", "d_distance", cells, len(levels), needs="an event")
    return parts(change=levels.tolist(), **bootstrap.estimates([distance]))
