"""How well token weights find the first error over many rollouts, where the task knows it.

The controls, since weights rise along every rollout: a random split of the same rollouts, the same split of the group's
correct rollouts, a random token, and (matched) only tokens at the same index of different rollouts.

Legend: T tokens of a rollout, e its first error; tokens e..T-1 are after it; omega stands for the weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from openrlhf_shear.report.bootstrap import Bootstrap, Quantity
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.weighted import Ordered, problem_codes, ratio
from openrlhf_shear.rollouts.record import Rollout
from openrlhf_shear.rollouts.traces import Trace, largest_near, random_split_auc, split_auc


@dataclass(frozen=True)
class Offset:
    """Mean weight at an offset from the first error, and at the same indices of the group's correct rollouts."""

    offset: int
    omega: Estimate
    control: Estimate


@dataclass(frozen=True)
class FirstErrors:
    """Means over incorrect rollouts that have a token before and a token from the first error on.

    Attributes:
        auc: of the rollout's tokens from the error on against those before.
        auc_random: the same of a random split of the same rollouts. auc_lead: auc - auc_random.
        auc_control: the same split of the group's correct rollouts, where nothing went wrong.
        auc_pooled: tokens of all these rollouts together.
        auc_matched: tokens at the same index, already wrong against still right (the correct rollouts' included).
        hit, hit_chance: the largest omega is within 1 token of the error; for a random token.
        hit_window, hit_window_chance: the same within `window` tokens.
        profile: mean omega from -window to +window of the error.
        rollouts, truncated: how many are measured; incorrect ones that have no such two tokens.
    """

    window: int
    auc: Estimate
    auc_random: Estimate
    auc_lead: Estimate
    auc_control: Estimate
    hit: Estimate
    hit_chance: Estimate
    hit_window: Estimate
    hit_window_chance: Estimate
    auc_pooled: Estimate
    auc_matched: Estimate
    profile: list[Offset]
    rollouts: int
    truncated: int

    @property
    def numbers(self) -> dict[str, Estimate]:
        return {
            "First error: AUC of omega after against before": self.auc,
            "First error: the same for a random split": self.auc_random,
            "First error: AUC over that of a random split": self.auc_lead,
            "First error: the same split of correct rollouts": self.auc_control,
            "First error: AUC of all tokens, pooled": self.auc_pooled,
            "First error: AUC at the same token index, wrong against still right": self.auc_matched,
            "First error: largest omega within 1 token": self.hit,
            "First error: a random token within 1 token": self.hit_chance,
            f"First error: largest omega within {self.window} tokens": self.hit_window,
            f"First error: a random token within {self.window} tokens": self.hit_window_chance,
        }


def traces_of(rollouts: Iterable[Rollout]) -> list[Trace]:
    """Rollouts with weights and an outcome, of groups that have both outcomes among them.

    A rollout whose hidden states are not finite has infinite distances; its weights of 1 measure nothing.
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


def first_errors(traces: Iterable[Trace], window: int, bootstrap: Bootstrap) -> FirstErrors:
    """How well the weights find the first error.

    Args:
        traces: all rollouts of mixed groups. A correct rollout with a first error (a lucky one) is no control; its
            tokens before the error are still right, and those after it count nowhere.
        window: tokens, of a span.
    """
    traces = list(traces)
    errors = [trace for trace in traces if not trace.correct and trace.first_error is not None]
    measured = measurable(traces)
    clean: dict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        if trace.correct and trace.first_error is None:
            clean[trace.group].append(trace)
    pairs = [(trace, clean[trace.group]) for trace in measured]
    return FirstErrors(
        window,
        **_means(pairs, window, bootstrap),
        auc_pooled=tokens_auc(measured, False, bootstrap),
        auc_matched=tokens_auc([t for t in traces if t.correct or t.first_error is not None], True, bootstrap),
        profile=_profile(pairs, window, bootstrap),
        rollouts=len(measured),
        truncated=len(errors) - len(measured),
    )


def measurable(traces: Iterable[Trace]) -> list[Trace]:
    """The incorrect rollouts with a token before and a token from the first error on."""
    return [t for t in traces if not t.correct and t.first_error is not None and 0 < t.first_error < len(t.weights)]


def _means(pairs: list[tuple[Trace, list[Trace]]], window: int, bootstrap: Bootstrap) -> dict[str, Estimate]:
    """The estimates of `FirstErrors` that are means over rollouts, by name."""
    measures = []
    for trace, clean in pairs:
        auc, random = split_auc(trace.weights, trace.first_error), random_split_auc(trace.weights)
        control = _mean([split_auc(other.weights, trace.first_error) for other in clean])
        near = [value for r in (1, window) for value in largest_near(trace.weights, trace.first_error, r)]
        measures.append([auc, random, auc - random, control, *near])
    spans = {"auc": 1, "auc_random": 1, "auc_lead": 2, "auc_control": 1}
    spans |= {"hit": 1, "hit_chance": 1, "hit_window": 1, "hit_window_chance": 1}
    return rollout_means([trace for trace, _ in pairs], measures, spans, bootstrap)


def rollout_means(
    traces: Sequence[Trace], values: Sequence[Sequence[float]], spans: Mapping[str, float | None], bootstrap: Bootstrap
) -> dict[str, Estimate]:
    """Means over the rollouts for which each is defined, by name.

    Args:
        values: (rollouts, V), NaN where one is not defined.
        spans: name -> largest minus smallest possible value, None without a bound; one a column of `values`, in order.
    """
    problems, number = problem_codes([trace.group for trace in traces])
    values = np.array(values, dtype=float).reshape(-1, len(spans))
    defined = np.isfinite(values)
    rows, total = np.zeros((2, number, len(spans)))
    np.add.at(rows, problems, defined)
    np.add.at(total, problems, np.where(defined, values, 0))
    needs = "an incorrect rollout with a token before and one from its first error on"
    columns = enumerate(spans.items())
    quantities = [Quantity(name, itemgetter(v), rows[:, v], needs, span) for v, (name, span) in columns]
    return bootstrap.estimates(quantities, lambda weights: ratio(weights @ total, weights @ rows))


def tokens_auc(traces: Sequence[Trace], matched: bool, bootstrap: Bootstrap, within_groups: bool = False) -> Estimate:
    """AUC of tokens already wrong against still right: of all tokens, or of those at the same index, by pairs.

    Args:
        matched: whether only tokens at the same index are compared.
        within_groups: whether only tokens of one group are.
    """
    parts: list[tuple] = []
    for trace in traces:
        weights, index = np.asarray(trace.weights, dtype=float), np.arange(len(trace.weights))
        wrong = index >= (len(index) if trace.first_error is None else trace.first_error)
        kept = ~(wrong & trace.correct)
        parts.append((np.full(len(index), trace.group)[kept], weights[kept], index[kept], wrong[kept]))
    groups, weights, index, wrong = map(np.concatenate, zip(*parts, strict=True)) if parts else np.zeros((4, 0))
    wrong, index = wrong.astype(bool), index.astype(int)
    problems, number = problem_codes(groups)
    strata = (index if matched else 0) + (problems * (index.max(initial=0) + 1) if within_groups else 0)
    tokens = Ordered(weights, np.broadcast_to(strata, weights.shape))

    def auc(drawn: np.ndarray) -> np.ndarray:
        won, pairs = tokens.wins(wrong, drawn[problems])
        return ratio(won.sum(), pairs.sum())

    rows = np.bincount(problems, minlength=number)
    where = " at the same index" if matched else ""
    needs = f"tokens already wrong and tokens still right{where}"
    return bootstrap.estimates([Quantity("auc", auc, rows, needs, 1.0)])["auc"]


def _profile(pairs: list[tuple[Trace, list[Trace]]], window: int, bootstrap: Bootstrap) -> list[Offset]:
    """Mean weights around the first error; the control is first averaged over each rollout's correct ones."""
    offsets = range(-window, window + 1)
    values = []
    for trace, clean in pairs:
        places = [trace.first_error + offset for offset in offsets]
        controls = [_mean([_at(other, at) for other in clean]) for at in places]
        values.append([*(_at(trace, at) for at in places), *controls])
    names = [(kind, offset) for kind in ("omega", "control") for offset in offsets]
    means = rollout_means([trace for trace, _ in pairs], values, dict.fromkeys(names), bootstrap)
    return [Offset(offset, means["omega", offset], means["control", offset]) for offset in offsets]


def _at(trace: Trace, index: int) -> float:
    return trace.weights[index] if 0 <= index < len(trace.weights) else np.nan


def _mean(values: list[float]) -> float:
    """Of those that are defined."""
    values = [value for value in values if np.isfinite(value)]
    return float(np.mean(values)) if values else np.nan
