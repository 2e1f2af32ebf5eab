"""Section 2: where the distance rises along the reasoning chain, accuracy falls, overall and step by step."""

from collections.abc import Mapping
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
    """Return means by position as three curves: `every`, `correct` and `incorrect` (by the rollout's outcome).

    The first mixes lengths and outcomes: only long rollouts reach deep positions, and they are wrong more often.
    A curve has:

    positions: tokens, ascending.
    accuracy, distance: means over all prefixes at each position.
    rho: Spearman's rho of the two, over positions.
    left_out: number of positions that too few problems reach.
    reach: number of problems that a position needed.

    Args:
        min_problems: a position counts if so many problems reach it, or all problems of a table with fewer.
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
    estimates, left_out = bootstrap.estimates(quantities, curves), int((reached < reach).sum())
    entries = {"positions": positions.tolist(), **estimates, "left_out": left_out, "reach": reach}
    return Analysis(entries, estimates.numbers)


def stride_changes(prefixes: pandas.DataFrame, completions: int, stride: int, bootstrap: Bootstrap) -> Analysis:
    """Correlate changes: where accuracy drops within a rollout, does W rise?

    Between prefixes of a rollout that end at most a stride apart,

        dAcc_t = Acc(s_t) - Acc(s_{t-1}),   dW_t = W(s_t) - W(s_{t-1}),   event: |dAcc_t| >= 1 / completions

    An event (appendix A: mutation) need not be a change of reasoning. Two draws of 16 completions at the same success
    rate mostly differ by at least one completion.

    threshold: of |dAcc|, for an event.
    strides: number of pairs of neighbouring prefixes.
    rho: over events. rho_correct, rho_incorrect: over events in originally correct and incorrect rollouts.
    rho_position: over events, ranks taken among events at the same position.
    rho_strides: over all pairs, events or not.
    levels: the mean dW (`distance`) of events by dAcc (`change`), ascending.
    events: the share of pairs that are events.
    events_by_chance: the same share had success never changed, by binomial draws alone (exact).
    reliability: the share of the variance of dAcc that is not binomial noise; below 0 where noise explains more.
    attenuation: its root, the factor by which noise alone shrinks any correlation with dAcc over all pairs.

    The table is of events: problem, correct, position, d_accuracy, d_distance.

    Args:
        completions: requested for each prefix. The threshold is one of them, however many have a verdict.
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
    estimates = bootstrap.estimates(
        [
            *(of(f"rho{o}", event & part, paper=papers.get(o), what=text + whose) for o, (part, whose) in outcomes),
            of("rho_position", event, rows.strata("position"), what=f"{text}, at fixed position"),
            of("rho_strides", rows.every, what="Local association: rho of all stride-wise changes"),
        ]
    )
    noise = _noise(rows, f"Local association: strides with |dAcc| >= {threshold:.4g}", bootstrap)
    events = rows.frame[event].reset_index(drop=True)
    entries = {"threshold": threshold, "strides": len(rows.frame), **estimates}
    entries |= {"levels": _levels(events, completions, bootstrap), **noise}
    return Analysis(entries, estimates.numbers | noise.numbers, events)


def _noise(rows: Rows, text: str, bootstrap: Bootstrap) -> Analysis:
    known = np.isfinite(rows["noise"])
    change = rows["d_accuracy"]
    columns = [np.ones(len(known)), rows["event"], rows["chance"]]
    columns += [np.where(known, column, 0) for column in (known, change, change**2, rows["noise"])]
    cell = np.zeros(len(known), dtype=int)
    sums = np.hstack([rows.sums(cell, 1, column.astype(float)) for column in columns])

    def shares(weights: np.ndarray) -> dict[str, float]:
        number, event, chance, n, total, squares, noise = weights @ sums
        left = 1 - ratio(noise, squares - ratio(total**2, n))
        both = {"events": ratio(event, number), "events_by_chance": ratio(chance, number)}
        return both | {"reliability": left, "attenuation": np.sqrt(max(left, 0)) if np.isfinite(left) else np.nan}

    needs = "changes of accuracy, of two completions or more"
    every, of_known = rows.counts(rows.every), rows.counts(known)
    quantities = [
        Quantity(name, itemgetter(name), counts, needs, span, what=what)
        for name, counts, span, what in (
            ("events", every, 1.0, text),
            ("events_by_chance", every, 1.0, f"{text} if success never changed"),
            ("reliability", of_known, None, "Local association: variance of changes that is not binomial noise"),
            ("attenuation", of_known, 1.0, "Local association: factor of that noise on a correlation"),
        )
    ]
    return bootstrap.estimates(quantities, shares)


def stride_table(prefixes: pandas.DataFrame, stride: int, completions: int) -> pandas.DataFrame:
    """Return the pairs of neighbouring prefixes.

    The columns are problem, sample, correct, position (of the second prefix), d_accuracy, d_distance, and:

    event: whether |d_accuracy| is at least 1 / completions.
    noise: the variance of d_accuracy by binomial draws alone: the sum of p (1 - p) / (n - 1) over both prefixes. It is
        NaN with a single completion.
    chance: the probability of an event had the success rate not changed, given how many completions of the two
        prefixes are correct.
    """
    ordered = prefixes.sort_values(["problem", "sample", "position"], ignore_index=True)
    rollouts = ordered.groupby(["problem", "sample"])
    change = rollouts[["position", "accuracy", "distance"]].diff()
    drawn = ordered["completions"].where(ordered["completions"] > 1)
    ordered["noise"] = ordered["accuracy"] * (1 - ordered["accuracy"]) / (drawn - 1)
    before = rollouts[["noise", "successes", "completions"]].shift()
    neighbours = change["position"].le(stride)  # False for the first prefix of a rollout, which has no difference
    # rounded: differences of equal fractions may differ in their last bit, and ranks would tell them apart
    ordered = ordered.assign(
        d_accuracy=change["accuracy"].round(9), d_distance=change["distance"], noise=ordered["noise"] + before["noise"]
    )
    columns = ["problem", "sample", "correct", "position", "d_accuracy", "d_distance", "noise"]
    counts = [ordered["successes"] + before["successes"], before["completions"], ordered["completions"]]
    table, counts = ordered.loc[neighbours, columns], [count[neighbours].to_numpy(dtype=int) for count in counts]
    least = 1 / completions - 1e-9
    table = table.assign(event=table["d_accuracy"].abs() >= least, chance=_chances(*counts, least))
    return table.reset_index(drop=True)


def _chances(correct: np.ndarray, first: np.ndarray, second: np.ndarray, least: float) -> np.ndarray:
    """Return (N,) P(|k / first - (correct - k) / second| >= least), k of the correct ones being among the first.

    The distribution of k is hypergeometric, whatever success rate both share.
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


BEFORE = 1  # strides before an error, as a check: nothing has happened yet


def lagged_changes(
    prefixes: pandas.DataFrame,
    first_errors: Mapping[tuple[str, int], int],
    window: int,
    stride: int,
    completions: int,
    bootstrap: Bootstrap,
) -> Analysis:
    """When does the distance change? Return its changes dW_{t+l} = W(s_{t+l}) - W(s_{t+l-1}) by lag l, in strides.

    In the stride where success drops, a backward window holds only the few tokens since the error. A window later it
    holds nothing else.

    lags: `lag`, in strides, and `rho` of dAcc_t and dW_{t+lag} over events (|dAcc_t| >= 1 / completions). Ranks are
        taken among events at the same position. Lag 0 is the paper's association, at fixed position.
    errors: an event study by `lag` of a change, from -1; lag 0 is the stride with the rollout's first wrong token.
        `distance` is the mean change of incorrect rollouts minus that of the group's correct rollouts at the same
        position; `accuracy` is the same of accuracy. Rows are changes that have such a control.

    Args:
        first_errors: (problem, sample) -> token, of rollouts that err. A correct rollout in it is no control.
        window, stride: tokens.
        completions: requested for each prefix.
    """
    changes = stride_table(prefixes, stride, completions)
    last = -(-window // stride)
    lags = range(last + 1)
    of_lag = [_later(changes[changes["event"]], changes, lag * stride) for lag in lags]
    columns = ("d_accuracy", "d_later")
    rhos = []
    for lag, frame in zip(lags, of_lag, strict=True):
        rows = Rows(frame)
        needs, what = "changes that differ", f"Local association at fixed position, lag {lag}"
        quantities = [rows.rho("rho", rows.every, rows.strata("position"), columns=columns, needs=needs, what=what)]
        rhos.append(bootstrap.estimates(quantities))
    errors = _around_errors(changes, first_errors, stride, range(-BEFORE, last + 1), bootstrap)
    numbers = {what: estimate for analysis in (*rhos, errors) for what, estimate in analysis.numbers.items()}
    studied = parts(lag=range(-BEFORE, last + 1), distance=errors.distance, accuracy=errors.accuracy)
    return Analysis({"lags": parts(lag=lags, rho=[analysis.rho for analysis in rhos]), "errors": studied}, numbers)


def _later(events: pandas.DataFrame, changes: pandas.DataFrame, tokens: int) -> pandas.DataFrame:
    """Return events with the change of distance `tokens` later in the same rollout; others are dropped."""
    later = changes[["problem", "sample", "position", "d_distance"]].rename(columns={"d_distance": "d_later"})
    later = later.assign(position=later["position"] - tokens)
    return events.merge(later, on=["problem", "sample", "position"])


def known_errors(frame: pandas.DataFrame, first_errors: Mapping[tuple[str, int], int]) -> np.ndarray:
    """Return (N,) the first error of each row's rollout; NaN without an error."""
    rollouts = zip(frame["problem"], frame["sample"], strict=True)
    return np.array([first_errors.get(key, np.nan) for key in rollouts], dtype=float)


def _around_errors(
    changes: pandas.DataFrame,
    first_errors: Mapping[tuple[str, int], int],
    stride: int,
    lags: range,
    bootstrap: Bootstrap,
) -> Analysis:
    error = known_errors(changes, first_errors)
    at, what = ["problem", "position"], ["d_accuracy", "d_distance"]
    clean = changes[changes["correct"].to_numpy(dtype=bool) & np.isnan(error)]
    control = clean.groupby(at)[what].mean()
    # the change that ends at a position p covers the tokens p - s to p - 1
    lag = np.floor((changes["position"].to_numpy() - 1 - error) / stride)
    studied = ~changes["correct"].to_numpy(dtype=bool) & (lag >= lags.start) & (lag < lags.stop)
    own = changes[studied].assign(lag=lag[studied].astype(int) - lags.start).merge(control, on=at, suffixes=("", "_c"))
    for name in what:
        own[name] -= own[f"{name}_c"]
    titles = [f"First error: change of distance over correct rollouts', lag {lag}" for lag in lags]
    of = partial(Rows(own).means, cells=own["lag"].to_numpy(), n=len(lags), needs="a change of both outcomes there")
    return bootstrap.estimates([of("distance", "d_distance", what=titles), of("accuracy", "d_accuracy", span=2.0)])
