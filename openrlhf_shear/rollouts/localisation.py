"""How well token weights find the first error over many rollouts, where the task knows the error.

Weights rise along every rollout, so each measure has controls. These are a random split of the same rollouts, the same
split of the group's correct rollouts, a random token, and (matched) tokens at the same index of different rollouts.

Legend: T tokens of a rollout, e its first error; tokens e..T-1 are after it; omega stands for the weights.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity, parts
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.rows import Ordered, problem_codes, ratio, sums
from openrlhf_shear.rollouts.record import Rollout

# The SHEAR paper, section "Theoretical Analysis", first assumption: mean distances of about 0.67 in the first quartile
# of prefix positions and 0.75 in the last. So 1.12 is a ratio of distances; the paper gives no contrast of omega.
PAPER_LAST_FIRST = 1.12
TITLES = {  # in a report's table; {} is the window
    "auc": "AUC of omega after against before",
    "auc_random": "the same for a random split",
    "auc_lead": "AUC over that of a random split",
    "auc_control": "the same split of correct rollouts",
    "auc_pooled": "AUC of all tokens, pooled",
    "auc_matched": "AUC at the same token index, wrong against still right",
    "hit": "largest omega within 1 token",
    "hit_chance": "a random token within 1 token",
    "hit_window": "largest omega within {} tokens",
    "hit_window_chance": "a random token within {} tokens",
}


@dataclass(frozen=True)
class Trace:
    """The part of a rollout of a mixed group that the measures need."""

    group: str
    correct: bool
    weights: Sequence[float]  # (T,) finite
    # index of the first wrong token; T or more if that token was never written; None without an error
    first_error: int | None


def split_auc(weights: Sequence[float], split: int) -> float:
    """Return the AUC of weights[split:] against weights[:split], ties half; NaN if one of them is empty.

    >>> split_auc([0.1, 0.4, 0.4, 0.9], 2)
    0.875
    """
    weights = np.asarray(weights, dtype=float)
    if not 0 < split < len(weights):
        return np.nan
    after, before = weights[split:], np.sort(weights[:split])
    won = sum(np.searchsorted(before, after, side).sum() for side in ("left", "right")) / 2  # ties half
    return float(won / (len(after) * len(before)))


def share(weights: Sequence[float], tokens: range) -> float:
    """Return the part of the weights, by size, on some tokens; 0 if all weights are 0.

    >>> share([1, -3, 0], range(1, 3))
    0.75
    """
    sizes = np.abs(np.asarray(weights, dtype=float))
    return float(sizes[tokens.start : tokens.stop].sum() / sizes.sum()) if sizes.sum() > 0 else 0.0


def random_split_auc(weights: Sequence[float]) -> float:
    """Return the exact expected `split_auc` of a uniformly random split in 1..T-1; NaN below two tokens.

    >>> random_split_auc([1, 2, 3]), random_split_auc([1, 1, 1]), random_split_auc([1, 3, 2])
    (1.0, 0.5, 0.75)
    """
    weights = np.asarray(weights, dtype=float)
    splits = np.arange(1, len(weights))
    if not len(splits):
        return np.nan
    over = (weights > weights[:, None]) + 0.5 * (weights == weights[:, None])  # [i, j]: whether j is larger than i
    before = over.cumsum(axis=0)
    won = np.array([before[split - 1, split:].sum() for split in splits])
    return float(np.mean(won / (splits * (len(weights) - splits))))


def largest_near(weights: Sequence[float], index: int, radius: int) -> tuple[float, float]:
    """Return two chances to lie within `radius` tokens of `index`: of a largest weight, and of a random token.

    Of several largest weights one is drawn. Weights of spans have plateaus: counting any of them as a hit would reward
    wide plateaus, and a random token has no counterpart to that. NaN without weights.
    >>> largest_near([0, 5, 5, 1], 0, 1)
    (0.5, 0.5)
    """
    weights = np.asarray(weights, dtype=float)
    near = np.abs(np.arange(len(weights)) - index) <= radius
    if not len(weights):
        return np.nan, np.nan
    return float(near[weights == weights.max()].mean()), float(near.mean())


def traces_of(rollouts: Iterable[Rollout]) -> list[Trace]:
    """Return the traces of rollouts with weights and an outcome, from groups that have both outcomes among them.

    A rollout with infinite hidden states has infinite distances; it is left out, since its weights of 1 measure
    nothing.
    """
    usable = [
        rollout
        for rollout in rollouts
        if rollout.weights and rollout.correct is not None and np.isfinite(rollout.span_distances or [0]).all()
    ]
    outcomes = defaultdict(set)
    for rollout in usable:
        outcomes[rollout.group].add(rollout.correct)
    return [Trace(r.group, r.correct, r.weights, r.first_error) for r in usable if len(outcomes[r.group]) == 2]


def first_errors(traces: Iterable[Trace], window: int, bootstrap: Bootstrap) -> Analysis:
    """Return how well the weights find the first error: means over incorrect rollouts.

    Only incorrect rollouts with a token before the first error and a token from it on are measured. Entries:

    auc: of the rollout's tokens from the error on against those before.
    auc_random: the same of a random split of the same rollouts.
    auc_lead: auc - auc_random.
    auc_control: the same split of the group's correct rollouts, where nothing went wrong.
    hit, hit_chance: the largest omega is within 1 token of the error; the same for a random token.
    hit_window, hit_window_chance: the same within `window` tokens.
    auc_pooled: AUC over the tokens of all these rollouts together.
    auc_matched: AUC of tokens at the same index, already wrong against still right (correct rollouts included).
    profile: mean `omega` at each `offset` from -window to +window of the error. Its `control` is the mean at the same
        indices of the group's correct rollouts, averaged first over those of one rollout.
    rollouts: the number of measured rollouts.
    truncated: the number of incorrect rollouts with an error that lack one of the two tokens.

    Args:
        traces: all rollouts of mixed groups. A correct rollout with a first error (a lucky one) is no control. Its
            tokens before the error are still right; its tokens after the error do not count.
        window: tokens of a span.
    """
    traces = list(traces)
    errors = [trace for trace in traces if not trace.correct and trace.first_error is not None]
    measured = measurable(traces)
    clean: dict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        if trace.correct and trace.first_error is None:
            clean[trace.group].append(trace)
    pairs = [(trace, clean[trace.group]) for trace in measured]
    right = [trace for trace in traces if trace.correct or trace.first_error is not None]
    entries = {
        "window": window,
        **_means(pairs, window, bootstrap),
        "auc_pooled": tokens_auc(measured, False, bootstrap),
        "auc_matched": tokens_auc(right, True, bootstrap),
        "profile": _profile(pairs, window, bootstrap),
        "rollouts": len(measured),
        "truncated": len(errors) - len(measured),
    }
    return Analysis(entries, {f"First error: {what.format(window)}": entries[name] for name, what in TITLES.items()})


def measurable(traces: Iterable[Trace]) -> list[Trace]:
    """Return the incorrect rollouts with a token before the first error and a token from it on."""
    return [t for t in traces if not t.correct and t.first_error is not None and 0 < t.first_error < len(t.weights)]


def _means(pairs: list[tuple[Trace, list[Trace]]], window: int, bootstrap: Bootstrap) -> Analysis:
    errors = [(trace.weights, trace.first_error) for trace, _ in pairs]
    columns = {"auc": [split_auc(*error) for error in errors]}
    columns["auc_random"] = [random_split_auc(weights) for weights, _ in errors]
    columns["auc_lead"] = np.subtract(columns["auc"], columns["auc_random"])
    columns["auc_control"] = [
        finite_mean([split_auc(other.weights, t.first_error) for other in clean]) for t, clean in pairs
    ]
    for name, radius in (("hit", 1), ("hit_window", window)):
        near = np.reshape([largest_near(*error, radius) for error in errors], (-1, 2))
        columns |= {name: near[:, 0], f"{name}_chance": near[:, 1]}
    spans = dict.fromkeys(columns, 1.0) | {"auc_lead": 2.0}
    columns = {name: np.asarray(column, dtype=float) for name, column in columns.items()}
    return rollout_means([trace for trace, _ in pairs], columns, spans, bootstrap)


def rollout_means(
    traces: Sequence[Trace], columns: Mapping[str, np.ndarray], spans: Mapping[str, float], bootstrap: Bootstrap
) -> Analysis:
    """Return the mean of each column, by name, over the rollouts for which it is defined.

    Args:
        columns: (rollouts,) or (rollouts, V), NaN where undefined.
        spans: largest minus smallest possible value, for the columns with bounds.
    """
    problems, number = problem_codes([trace.group for trace in traces])
    needs = "an incorrect rollout with a token before and one from its first error on"

    def mean(name: str, column: np.ndarray) -> Quantity:
        defined = np.isfinite(column)
        rows, total = np.zeros((2, number, *column.shape[1:]))
        np.add.at(rows, problems, defined)
        np.add.at(total, problems, np.where(defined, column, 0))
        return Quantity(name, lambda weights: ratio(weights @ total, weights @ rows), rows, needs, spans.get(name))

    return bootstrap.estimates([mean(name, column) for name, column in columns.items()])


def tokens_auc(traces: Sequence[Trace], matched: bool, bootstrap: Bootstrap, within_groups: bool = False) -> Estimate:
    """Return the AUC of tokens already wrong against still right, by pairs.

    Pairs are any two tokens, or (`matched`) tokens at the same index, or (`within_groups`) tokens of the same group.
    """
    columns: list[tuple] = []
    for trace in traces:
        weights, index = np.asarray(trace.weights, dtype=float), np.arange(len(trace.weights))
        wrong = index >= (len(index) if trace.first_error is None else trace.first_error)
        chosen = ~(wrong & trace.correct)
        columns.append((np.full(len(index), trace.group)[chosen], weights[chosen], index[chosen], wrong[chosen]))
    groups, weights, index, wrong = map(np.concatenate, zip(*columns, strict=True)) if columns else np.zeros((4, 0))
    wrong, index = wrong.astype(bool), index.astype(int)
    problems, number = problem_codes(groups)
    strata = (index if matched else 0) + (problems * (index.max(initial=0) + 1) if within_groups else 0)
    tokens = Ordered(weights, np.broadcast_to(strata, weights.shape))

    def auc(drawn: np.ndarray) -> np.ndarray:
        won, pairs = tokens.wins(wrong, drawn[problems])
        return ratio(won.sum(), pairs.sum())

    needs = f"tokens already wrong and tokens still right{' at the same index' if matched else ''}"
    return bootstrap.estimates([Quantity("auc", auc, np.bincount(problems, minlength=number), needs, 1.0)]).auc


def _profile(pairs: list[tuple[Trace, list[Trace]]], window: int, bootstrap: Bootstrap) -> list[Analysis]:
    traces, offsets = [trace for trace, _ in pairs], range(-window, window + 1)
    omega, control = np.zeros((2, len(pairs), len(offsets)))
    for i, (trace, clean) in enumerate(pairs):
        places = [trace.first_error + offset for offset in offsets]
        omega[i] = [_at(trace, at) for at in places]
        control[i] = [finite_mean([_at(other, at) for other in clean]) for at in places]
    return parts(offset=offsets, **rollout_means(traces, {"omega": omega, "control": control}, {}, bootstrap))


def _at(trace: Trace, index: int) -> float:
    return trace.weights[index] if 0 <= index < len(trace.weights) else np.nan


def finite_mean(values: list[float]) -> float:
    """Return the mean of the finite values; NaN without any."""
    values = [value for value in values if np.isfinite(value)]
    return float(np.mean(values)) if values else np.nan


def contrast(traces: Iterable[Trace], bootstrap: Bootstrap) -> Analysis:
    """Return how strongly weights reweigh: two ratios of mean weights, 1 for uniform weights.

    A mean is over rollouts, of each rollout's mean over its tokens. A contrast does not say whether a rule is right to.

    last_first: tokens in the last quarter of a response over those in the first. Token t of T is in the first quarter
        if (t + 1/2) / T <= 1/4, and in the last if it is >= 3/4. A response of a single token has neither.
    wrong_right: all tokens of incorrect rollouts over all tokens of correct rollouts.

    Args:
        traces: rollouts of mixed groups, as `traces_of` returns them.

    Example: (2 + 7) / (1 + 3) = 2.25, and 5 / 2.

    >>> rollouts = [Trace("a", True, [1, 2, 3, 2], None), Trace("a", False, [3, 5, 5, 7], None)]
    >>> [each.value for each in contrast(rollouts, Bootstrap(1)).values()]
    [2.25, 2.5]
    """
    traces = [trace for trace in traces if len(trace.weights)]
    problems, number = problem_codes([trace.group for trace in traces])
    first, last, mean = np.array([_quarters(trace.weights) for trace in traces]).reshape(-1, 3).T
    wrong = np.array([not trace.correct for trace in traces], dtype=int)
    both = np.where(np.isfinite(first), 0, -1)
    cells = ((both, first, 1), (both, last, 1), (wrong, mean, 2))  # which cell, its values, number of cells
    counts, totals = (
        np.hstack([sums(problems, at, values if summed else None, (number, n)) for at, values, n in cells])
        for summed in (False, True)
    )

    def ratios(weights: np.ndarray) -> dict[str, np.ndarray]:
        first, last, right, wrong = ratio(weights @ totals, weights @ counts)
        return {"last_first": ratio(last, first), "wrong_right": ratio(wrong, right)}

    needs, ends = "responses of two tokens or more", "Contrast of omega: last over first quarter of a response"
    sides = "Contrast of omega: wrong over right rollouts"
    quantities = [
        Quantity("last_first", itemgetter("last_first"), counts[:, 0], needs, None, PAPER_LAST_FIRST, ends),
        Quantity("wrong_right", itemgetter("wrong_right"), counts[:, 2:].sum(axis=1), "both outcomes", what=sides),
    ]
    return bootstrap.estimates(quantities, ratios)


def _quarters(weights: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean weights of the first quarter, of the last, and of all tokens; NaN for an empty quarter."""
    weights = np.asarray(weights, dtype=float)
    place = (np.arange(len(weights)) + 0.5) / len(weights)
    quarters = (weights[place <= 0.25], weights[place >= 0.75])
    return (*(float(part.mean()) if len(part) else np.nan for part in quarters), float(weights.mean()))
