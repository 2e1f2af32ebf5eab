"""What a rule can show of a group beyond its weights: where the spans are, what each is nearest to, and how far apart
the spans of two rollouts are.

Legend: `G` rollouts, `T_i` response tokens, `K_i` spans of rollout i, `S_i` of them shown, `d` hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit.rule import CreditRule, CreditRuleError, RolloutGroup
from openrlhf_shear.kernels.backends import choose_backend
from openrlhf_shear.ot import Spans, make_distance, search_spans

if TYPE_CHECKING:
    from openrlhf_shear.credit.shear import ShearResult

SHOWN_SPANS = 32  # of a rollout, on heatmaps


@dataclass(frozen=True)
class SpanEvidence:
    """One rollout's; all tensors on the CPU.

    Attributes:
        span_starts: (K,) int64 tokens.
        span_distances: (K,) float32 in units of nbar; infinite where nothing opposes.
        nearest_sample: (K,) int64: the rollout of the nearest opposing span, by its index in the group; -1 where
            nothing opposes.
        nearest_span: (K,) int64: which of that rollout's spans; -1 likewise.
        heatmap_spans: (S,) int64: the spans that heatmaps show, ascending.
        heatmaps: by the other rollout's index j, greater than this one's: (S, S_j) float32 distances between shown
            spans in units of nbar, whatever the outcomes. None for rollouts that were not measured.
    """

    span_starts: torch.Tensor
    span_distances: torch.Tensor
    nearest_sample: torch.Tensor
    nearest_span: torch.Tensor
    heatmap_spans: torch.Tensor
    heatmaps: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupEvidence:
    """Of a group: one `SpanEvidence` a rollout, in the order of the group."""

    rollouts: tuple[SpanEvidence, ...]


def shown_spans(count: int, most: int = SHOWN_SPANS) -> torch.Tensor:
    """All of `count` spans, or `most` (at least 2) spread evenly over them, the first and the last included.

    >>> shown_spans(10, most=4).tolist()
    [0, 3, 6, 9]

    Returns:
        (min(count, most),) int64, ascending.
    """
    if count <= most:
        return torch.arange(count)
    return torch.arange(most) * (count - 1) // (most - 1)


@torch.no_grad()
def group_evidence(
    hidden_states: Sequence[torch.Tensor],
    result: ShearResult,
    config: ShearConfig,
    heatmaps: bool = True,
    most: int = SHOWN_SPANS,
) -> GroupEvidence:
    """The evidence of a group that `shear_weights` has weighed.

    Args:
        hidden_states: (T_i, d) each, as they were given to it.
        result: what it gave.
        config: likewise.
        heatmaps: False leaves them out, which are what takes time: every pair of shown spans is solved.
        most: shown spans of a rollout, at least 2.
    """
    shown = [shown_spans(len(starts), most) for starts in result.span_starts]
    maps = _heatmaps(hidden_states, result, config, shown) if heatmaps and result.mean_norm > 0 else {}
    rows = zip(result.span_starts, result.span_distances, result.nearest_rollouts, result.nearest_spans, strict=True)
    return GroupEvidence(
        tuple(
            SpanEvidence(*(tensor.cpu() for tensor in row), shown[i], {j: m for (a, j), m in maps.items() if a == i})
            for i, row in enumerate(rows)
        )
    )


def _heatmaps(
    hidden_states: Sequence[torch.Tensor], result: ShearResult, config: ShearConfig, shown: Sequence[torch.Tensor]
) -> dict[tuple[int, int], torch.Tensor]:
    """(S_i, S_j) float32 on the CPU for every i < j of the measured rollouts."""
    measured = sorted(i for side in result.sides for i in side)
    if len(measured) < 2:
        return {}
    scale, window, stride = result.mean_norm, config.window, config.stride
    epsilon = config.epsilon_in_norms(scale)
    sinkhorn = choose_backend(config.backend, hidden_states[0].device.type, window)
    # mmd takes its bandwidth from the two sides; without opposition, from the tokens in the rollouts' order.
    sides = result.sides if result.opposed else (measured[:1], measured[1:])
    packed = [Spans.pack([hidden_states[i] for i in side], window, stride, scale) for side in sides]
    distance = make_distance(config.distance, epsilon, *packed, sinkhorn)
    spans = {i: _only(Spans.pack([hidden_states[i]], window, stride, scale), shown[i]) for i in measured}
    return {
        (i, j): search_spans(
            spans[i], spans[j], distance, "min", epsilon, config.max_cost_bytes, prune=False
        ).lower_bound
        for i in measured
        for j in measured
        if i < j
    }


def _only(spans: Spans, which: torch.Tensor) -> Spans:
    """The spans `which`, over no more than their own tokens: shown spans can be a small part of a long rollout."""
    if len(which) == len(spans):
        return spans
    starts, sizes = spans.starts[which], spans.sizes[which]
    covered = torch.zeros(len(spans.tokens), dtype=torch.bool)
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        covered[start : start + size] = True
    moved = covered.long().cumsum(0) - 1
    return Spans(spans.tokens[covered.to(spans.tokens.device)], moved[starts], sizes, spans.scale)


_TENSORS = ("span_starts", "span_distances", "nearest_sample", "nearest_span", "heatmap_spans")


def checked_evidence(rule: CreditRule, group: RolloutGroup) -> GroupEvidence | None:
    """`rule.evidence(group)`.

    Raises:
        CreditRuleError: it raised, or gave something that is no evidence of these rollouts.
    """
    where = f"credit rule {rule.name} ({type(rule).__module__}:{type(rule).__qualname__}), group {group.number}"
    try:
        evidence = rule.evidence(group)
    except Exception as error:
        raise CreditRuleError(f"{where}: evidence() raised {type(error).__name__}: {error}") from error
    if evidence is None:
        return None
    if not isinstance(evidence, GroupEvidence):
        raise CreditRuleError(f"{where}: evidence() must return a GroupEvidence: got {type(evidence).__name__}")
    if len(evidence.rollouts) != len(group.lengths):
        raise CreditRuleError(
            f"{where}: evidence() must have one entry a rollout, {len(group.lengths)}: got {len(evidence.rollouts)}"
        )
    for i, one in enumerate(evidence.rollouts):
        problem = _problem(one, i, evidence.rollouts)
        if problem:
            raise CreditRuleError(f"{where}: the evidence of rollout {i} {problem}")
    return evidence


def _problem(one: SpanEvidence, i: int, rollouts: Sequence[SpanEvidence]) -> str | None:
    tensors = {name: getattr(one, name) for name in _TENSORS}
    tensors |= {f"heatmap {j}": values for j, values in one.heatmaps.items()}
    for name, values in tensors.items():
        if not isinstance(values, torch.Tensor) or values.is_cuda:
            return f"has {name} that is no tensor on the CPU"
    spans = len(one.span_starts)
    for name in _TENSORS[1:4]:
        if len(tensors[name]) != spans:
            return f"has {spans} spans and {len(tensors[name])} {name}"
    if not all(0 <= k < spans for k in one.heatmap_spans.tolist()):
        return f"has {spans} spans and shows {one.heatmap_spans.tolist()}"
    for j, k in zip(one.nearest_sample.tolist(), one.nearest_span.tolist(), strict=True):
        if (j, k) != (-1, -1) and not (0 <= j < len(rollouts) and 0 <= k < len(rollouts[j].span_starts)):
            return f"has a nearest span {k} of rollout {j}, which is not there"
    for j, values in one.heatmaps.items():
        if not i < j < len(rollouts):
            return f"has a heatmap with rollout {j}; a pair's is with the lower one"
        shape = len(one.heatmap_spans), len(rollouts[j].heatmap_spans)
        if tuple(values.shape) != shape:
            return f"has a heatmap {tuple(values.shape)} with rollout {j}; the shown spans are {shape}"
    return None
