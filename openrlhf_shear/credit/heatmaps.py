"""Evidence of a group that SHEAR has weighed. Legend: `K_i` spans of rollout i, `S_i` of them shown."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import torch

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.credit.rule import CONTROLS, GroupEvidence, SpanEvidence
from openrlhf_shear.credit.shear import ShearResult, shear_weights
from openrlhf_shear.kernels.backends import choose_backend
from openrlhf_shear.transport import Spans, cost_spread, make_distance, search_spans

SHOWN_SPANS = 32  # spans of a rollout that heatmaps show


@torch.no_grad()
def shear_evidence(
    hidden_states: Sequence[torch.Tensor],
    correct: Sequence[bool | None],
    config: ShearConfig | None = None,
    search: SearchConfig | None = None,
    heatmaps: bool = True,
    controls: bool = False,
) -> tuple[ShearResult, GroupEvidence]:
    """Return `shear_weights(...)` and its `group_evidence`, whose heatmaps take most of the time."""
    config, search = config or ShearConfig(), search or SearchConfig()
    result = shear_weights(hidden_states, correct, config, search)
    return result, group_evidence(hidden_states, result, config, search, heatmaps, controls=controls)


def shown_spans(count: int) -> torch.Tensor:
    """Choose all of `count` spans, or `SHOWN_SPANS` evenly from first to last: int64 indices, ascending."""
    if count <= SHOWN_SPANS:
        return torch.arange(count)
    return torch.arange(SHOWN_SPANS) * (count - 1) // (SHOWN_SPANS - 1)


@torch.no_grad()
def group_evidence(
    hidden_states: Sequence[torch.Tensor],
    result: ShearResult,
    config: ShearConfig,
    search: SearchConfig,
    heatmaps: bool = True,
    controls: bool = False,
) -> GroupEvidence:
    """Return the evidence of a group, from the arguments and the `result` of `shear_weights`.

    Args:
        heatmaps: whether to compute heatmaps; they take most of the time, as every pair of shown spans is solved.
        controls: whether to compute the control distances, which take about two further searches.
    """
    shown = [shown_spans(len(starts)) for starts in result.span_starts]
    maps = _heatmaps(hidden_states, result, config, search, shown) if heatmaps and result.mean_norm > 0 else {}
    beside = _controls(hidden_states, result, config, search) if controls else [{}] * len(shown)
    rows = zip(result.span_starts, result.span_distances, result.nearest_rollouts, result.nearest_spans, strict=True)
    return GroupEvidence(
        tuple(
            SpanEvidence(
                *(tensor.cpu() for tensor in row),
                shown[i],
                {j: m for (a, j), m in maps.items() if a == i},
                beside[i],
                float(hidden_states[i].float().norm(dim=1).max()) / result.mean_norm
                if beside[i] and len(hidden_states[i]) and result.mean_norm > 0
                else None,
            )
            for i, row in enumerate(rows)
        )
    )


def _measure(
    hidden_states: Sequence[torch.Tensor], result: ShearResult, config: ShearConfig, search: SearchConfig
) -> tuple[Callable[[Sequence[int]], Spans], Callable]:
    """Return what cuts rollouts, by index, into spans, and their distance; two rollouts or more are measured."""

    def pack(rollouts: Sequence[int]) -> Spans:
        return Spans.pack([hidden_states[i] for i in rollouts], config, result.mean_norm)

    # mmd and epsilon_spread measure the two sides; if no rollouts oppose, the first rollout and the others.
    measured = result.measured
    sides = result.sides if result.opposed else (measured[:1], measured[1:])
    epsilon = result.epsilon
    if epsilon is None:
        states = (torch.cat([hidden_states[i] for i in side]) for side in sides)
        spread = 0.0 if config.epsilon_spread is None else cost_spread(*states, result.mean_norm)
        epsilon = config.epsilon_in_norms(result.mean_norm, spread)
    sinkhorn = choose_backend(search.backend, hidden_states[0].device.type, config.window)
    return pack, make_distance(config.distance, epsilon, *map(pack, sides), sinkhorn)


def _controls(
    hidden_states: Sequence[torch.Tensor], result: ShearResult, config: ShearConfig, search: SearchConfig
) -> list[dict[str, torch.Tensor]]:
    """Return the control distances by rollout and name, (K_i,) float32 on the CPU; infinite without other rollouts."""
    same = [torch.full(starts.shape, torch.inf) for starts in result.span_starts]
    permuted = list(same)
    if result.opposed:
        pack, distance = _measure(hidden_states, result, config, search)
        for side in result.sides:
            for i in side if len(side) > 1 else ():
                spans = pack([i]), pack([j for j in side if j != i])
                same[i] = search_spans(*spans, distance, search.max_cost_bytes).correct
        measured = result.measured
        # The seed gives a group the same order each time, and most groups different orders.
        order = torch.Generator().manual_seed(sum(len(hidden_states[i]) for i in measured))
        drawn = torch.randperm(len(measured), generator=order).tolist()
        outcomes: list[bool | None] = [None] * len(hidden_states)
        for i, j in enumerate(drawn):
            outcomes[measured[i]] = measured[j] in result.sides[0]
        held = config  # a control differs in nothing but the outcomes, so its epsilon is the group's
        if config.epsilon_spread is not None and result.epsilon is not None:
            held = replace(config, epsilon=result.epsilon * result.mean_norm, epsilon_spread=None)
        permuted = [d.cpu() for d in shear_weights(hidden_states, outcomes, held, search).span_distances]
    return [dict(zip(CONTROLS, both, strict=True)) for both in zip(same, permuted, strict=True)]


def _heatmaps(
    hidden_states: Sequence[torch.Tensor],
    result: ShearResult,
    config: ShearConfig,
    search: SearchConfig,
    shown: Sequence[torch.Tensor],
) -> dict[tuple[int, int], torch.Tensor]:
    """Return the distances (S_i, S_j) float32, on the CPU, for all i < j of the measured rollouts."""
    measured = result.measured
    if len(measured) < 2:
        return {}
    pack, distance = _measure(hidden_states, result, config, search)
    spans = {i: _only(pack([i]), shown[i]) for i in measured}
    how = {"distance": distance, "max_bytes": search.max_cost_bytes, "prune": False, "keep": True}
    return {(i, j): search_spans(spans[i], spans[j], **how).table.lower_bound for i, j in combinations(measured, 2)}


def _only(spans: Spans, which: torch.Tensor) -> Spans:
    """Return the spans `which`, with no tokens but theirs: shown spans can be a small part of a long rollout."""
    if len(which) == len(spans):
        return spans
    starts, sizes = spans.starts[which], spans.sizes[which]
    covered = torch.zeros(len(spans.tokens), dtype=torch.bool)
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        covered[start : start + size] = True
    moved = covered.long().cumsum(0) - 1
    return Spans(spans.tokens[covered.to(spans.tokens.device)], moved[starts], sizes, spans.scale)
