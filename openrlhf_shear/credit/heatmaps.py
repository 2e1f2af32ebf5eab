"""The evidence of a group that SHEAR has weighed. Legend: `K_i` spans of rollout i, `S_i` of them shown."""

from collections.abc import Sequence
from itertools import combinations

import torch

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.credit.evidence import GroupEvidence, SpanEvidence
from openrlhf_shear.credit.shear import ShearResult, shear_weights
from openrlhf_shear.kernels.backends import choose_backend
from openrlhf_shear.ot import Spans, make_distance, search_spans

SHOWN_SPANS = 32  # of a rollout, on heatmaps


@torch.no_grad()
def shear_evidence(
    hidden_states: Sequence[torch.Tensor],
    correct: Sequence[bool | None],
    config: ShearConfig | None = None,
    search: SearchConfig | None = None,
    heatmaps: bool = True,
) -> tuple[ShearResult, GroupEvidence]:
    """`shear_weights(...)` with its `group_evidence`, whose heatmaps take most of the time."""
    config, search = config or ShearConfig(), search or SearchConfig()
    result = shear_weights(hidden_states, correct, config, search)
    return result, group_evidence(hidden_states, result, config, search, heatmaps)


def shown_spans(count: int, most: int = SHOWN_SPANS) -> torch.Tensor:
    """All of `count` spans, or `most` (at least 2) spread evenly with the first and the last: int64, ascending.

    >>> shown_spans(10, most=4).tolist()
    [0, 3, 6, 9]
    """
    if count <= most:
        return torch.arange(count)
    return torch.arange(most) * (count - 1) // (most - 1)


@torch.no_grad()
def group_evidence(
    hidden_states: Sequence[torch.Tensor],
    result: ShearResult,
    config: ShearConfig,
    search: SearchConfig,
    heatmaps: bool = True,
    most: int = SHOWN_SPANS,
) -> GroupEvidence:
    """The evidence of a group from what `shear_weights` was given, and the `result` that it gave.

    Args:
        heatmaps: False leaves them out, which are what takes time: every pair of shown spans is solved.
        most: shown spans of a rollout, at least 2.
    """
    shown = [shown_spans(len(starts), most) for starts in result.span_starts]
    maps = _heatmaps(hidden_states, result, config, search, shown) if heatmaps and result.mean_norm > 0 else {}
    rows = zip(result.span_starts, result.span_distances, result.nearest_rollouts, result.nearest_spans, strict=True)
    return GroupEvidence(
        tuple(
            SpanEvidence(*(tensor.cpu() for tensor in row), shown[i], {j: m for (a, j), m in maps.items() if a == i})
            for i, row in enumerate(rows)
        )
    )


def _heatmaps(
    hidden_states: Sequence[torch.Tensor],
    result: ShearResult,
    config: ShearConfig,
    search: SearchConfig,
    shown: Sequence[torch.Tensor],
) -> dict[tuple[int, int], torch.Tensor]:
    """(S_i, S_j) float32 on the CPU for every i < j of the measured rollouts."""
    measured = sorted(i for side in result.sides for i in side)
    if len(measured) < 2:
        return {}
    epsilon = config.epsilon_in_norms(result.mean_norm)

    def pack(rollouts: Sequence[int]) -> Spans:
        states = [hidden_states[i] for i in rollouts]
        return Spans.pack(states, config.window, config.stride, result.mean_norm, config.max_spans, config.tail)

    # mmd takes its bandwidth from the two sides; without opposition, from the tokens in the rollouts' order.
    sides = result.sides if result.opposed else (measured[:1], measured[1:])
    sinkhorn = choose_backend(search.backend, hidden_states[0].device.type, config.window)
    distance = make_distance(config.distance, epsilon, *map(pack, sides), sinkhorn)
    spans = {i: _only(pack([i]), shown[i]) for i in measured}
    maps = {}
    for i, j in combinations(measured, 2):
        most = search.max_cost_bytes
        solved = search_spans(spans[i], spans[j], distance, "min", epsilon, most, prune=False, keep=True)
        maps[i, j] = solved.table.lower_bound
    return maps


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
