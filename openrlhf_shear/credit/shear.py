"""SHEAR: a token's weight is the distance of its spans to all spans of the rollouts with the other outcome.

    nbar        = mean ||h[i, t]||_2 over the response tokens of the group
    d[i, k]     = min over spans (j, l) of opposing rollouts of W_eps(span (i, k), span (j, l))
    omega[i, t] = max over spans k that cover t of d[i, k] / nbar

All distances are computed on h / nbar, which gives the same omega, and also works for distances without units.
epsilon is in units of nbar, or of the spread of the group's token costs (`epsilon_spread`, `transport.cost_spread`).
Spans start every `stride` tokens. The paper leaves open which start is the last; `tail` decides
(`transport.span_starts`).

Legend: `G` rollouts, `T_i` response tokens of rollout i, `K_i` spans, `d` hidden size.
Next: `transport.geometry`, spans and costs, then `transport.search`, the min over spans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.kernels.backends import choose_backend
from openrlhf_shear.transport import (
    SinkhornPairs,
    Spans,
    SpanSearch,
    cost_spread,
    cost_spreads,
    make_distance,
    make_together,
    search_bytes,
    search_groups,
    span_starts,
)
from openrlhf_shear.transport.copies import to_device
from openrlhf_shear.transport.geometry import token_norms

# Costs are roots of float32 squares. Beyond e.g. 1e19 a token's square is infinite; below 1e-19 it is 0.
_MOST_NORM, _LEAST_NORM = 1e18, 1e-15
_UNITLESS = ("cosine", "mmd")  # distances without units: `normalize = "none"` has nothing to undo


@dataclass(frozen=True)
class ShearResult:
    """Token weights of a group, and their evidence. Lists have one entry per rollout, in the given order.

    Everything is on the CPU, except for the weights of `shear_weights`. Distances are in units of nbar for every
    `normalize`, and infinite if no rollout opposes; weights are then 1. Of opposing spans at equal distance, the one
    with the lower index is nearest. A solve that did not converge counts with the bound that it reached.
    """

    weights: list[torch.Tensor]  # (T_i,) float32: omega; of `shear_weights` on the device of the hidden states
    span_starts: list[torch.Tensor]  # (K_i,) int64: span k covers [start, min(start + window, T_i))
    span_distances: list[torch.Tensor]  # (K_i,) float32
    mean_norm: float  # nbar, in the units of the hidden states, over the measured rollouts; 0.0 if these have no token
    solved_fraction: float  # fraction of the opposing span pairs that were solved; 0.0 without such pairs
    unconverged_fraction: float  # fraction of the solves that did not reach their tolerance; 0.0 without solves
    nonfinite: list[bool]  # whether the rollout has a NaN or infinite hidden state, or norms that add up to 1e18
    sides: tuple[list[int], list[int]]  # measured rollouts, correct and incorrect: finite, not empty, of known outcome
    nearest_rollouts: list[torch.Tensor]  # (K_i,) int64: rollout of the nearest opposing span; -1 if none
    nearest_spans: list[torch.Tensor]  # (K_i,) int64: index of that span in its rollout; -1 likewise
    epsilon: float | None  # entropic regularisation in units of nbar; None if no rollout opposes, or nbar = 0
    cost_spread: float | None  # std(C) / epsilon of the tokens' costs; None likewise, and for distances without epsilon

    @property
    def measured(self) -> list[int]:
        """Measured rollouts of both sides, ascending."""
        return sorted(i for side in self.sides for i in side)

    @property
    def opposed(self) -> bool:
        """Whether both a correct and an incorrect rollout were measured."""
        return all(self.sides)

    @property
    def spread_metrics(self) -> dict[str, float]:
        """The metric `cost_spread` of a group, by its name; empty if the group has none."""
        return {} if self.cost_spread is None else {"cost_spread": self.cost_spread}

    @property
    def converged(self) -> bool:
        """Whether every solve reached its tolerance."""
        return self.unconverged_fraction == 0.0


@torch.no_grad()
def shear_weights(
    hidden_states: Sequence[torch.Tensor | np.ndarray],
    correct: Sequence[bool | None] | np.ndarray,
    config: ShearConfig | None = None,
    search: SearchConfig | None = None,
) -> ShearResult:
    """Return the token weights of one group.

    Example: two rollouts of one token, with nbar = 2.5 and W_eps = 5:

    >>> shear_weights([torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])], [True, False]).weights
    [tensor([2.]), tensor([2.])]

    All weights are 1 if no rollouts oppose, or if nbar is 0 (at most 1e-15). A rollout of unknown outcome, or with a
    hidden state that is not finite (or norms that add up to 1e18), also has weights of 1. It counts neither in nbar nor
    in any opposing set.

    Args:
        hidden_states: G tensors (T_i, d), float32 or bfloat16, on one device, or NumPy arrays; T_i may be 0.
        correct: G outcomes, True or False; None for an unknown outcome, e.g. because a reward failed.
        config: knobs of the rule; by default the paper's rule with a scale-free epsilon.
        search: settings of the span search, which do not change the result.

    Raises ValueError: the inputs do not match.
    """
    (result,) = shear_groups([(hidden_states, correct)], config, search)
    device = hidden_states[0].device if isinstance(hidden_states[0], torch.Tensor) else torch.device("cpu")
    weights = to_device(torch.cat(result.weights), device).split([len(h) for h in hidden_states])
    return replace(result, weights=list(weights))


@torch.no_grad()
def shear_groups(
    groups: Sequence[tuple[Sequence[torch.Tensor | np.ndarray], Sequence[bool | None] | np.ndarray]],
    config: ShearConfig | None = None,
    search: SearchConfig | None = None,
) -> list[ShearResult]:
    """Return `shear_weights` of each group (hidden states, outcomes), all on one device, with weights on the CPU.

    On CUDA the groups' searches share their kernels, up to the memory of a search. Results are those of each group
    alone, up to a few roundings in the metrics of solves. Arguments are as in `shear_weights`, by group.
    """
    config, search = config or ShearConfig(), search or SearchConfig()
    search.require_fits(config.window)
    prepared = _prepared(groups, config)
    searched = {}
    for together in _at_once([group for group in prepared if group.is_mixed], search):
        searched |= zip(map(id, together), _searched(together, config, search), strict=True)
    return [_weighed(group, searched.get(id(group)), config) for group in prepared]


def _weighed(group: "_Group", nearest: SpanSearch | None, config: ShearConfig) -> ShearResult:
    """Return the weights of a group from its search; None: no rollouts oppose."""
    hidden_states, sides = group.hidden_states, group.sides
    starts = [span_starts(len(h), config) for h in hidden_states]
    distances = [torch.full(s.shape, torch.inf, dtype=torch.float32) for s in starts]
    weights = [torch.ones(len(h), dtype=torch.float32) for h in hidden_states]
    nearest_rollouts, nearest_spans = ([torch.full((len(s),), -1) for s in starts] for _ in range(2))
    solved_fraction = unconverged_fraction = 0.0
    if nearest is not None:
        solved_fraction, unconverged_fraction = nearest.solved_fraction, nearest.unconverged_fraction
        owners = [_owners(side, starts) for side in sides]
        per_side = zip(sides, (nearest.correct, nearest.incorrect), nearest.sides, reversed(owners), strict=True)
        for side, of_side, evidence, (rollout, span) in per_side:
            counts = [len(starts[i]) for i in side]
            for i, part, opposing in zip(side, of_side.split(counts), evidence.nearest.split(counts), strict=True):
                distances[i], nearest_rollouts[i], nearest_spans[i] = part, rollout[opposing], span[opposing]
        measured = group.measured
        pooled = [pool_spans(distances[i], starts[i], len(weights[i]), config.window, config.pool) for i in measured]
        scaled = normalize_weights(pooled, config.normalize, group.mean_norm, config.distance)
        for i, weight in zip(measured, scaled, strict=True):
            weights[i] = weight
    shown = solved_fraction, unconverged_fraction, group.nonfinite, sides, nearest_rollouts, nearest_spans
    epsilon = group.epsilon if group.is_mixed else None
    spread = group.spread / epsilon if epsilon is not None and config.distance == "sinkhorn" else None
    return ShearResult(weights, starts, distances, group.mean_norm, *shown, epsilon, spread)


def _searched(groups: Sequence["_Group"], config: ShearConfig, search: SearchConfig) -> list[SpanSearch]:
    """Search mixed groups of one epsilon."""
    sides, (first, *others) = [group.spans() for group in groups], groups
    if config.distance == "sinkhorn":
        tokens = [(right.tokens, wrong.tokens, right.scale) for right, wrong in sides]
        for group, spread in zip(groups, cost_spreads(tokens), strict=True):
            group.spread = spread  # where its tokens are side by side anyway
    backend, epsilon = first.backend(search), first.epsilon
    distance = make_distance(config.distance, epsilon, *sides[0], backend)
    together = make_together(config.distance, epsilon, backend) if others else None
    return search_groups(sides, distance, together, search.max_cost_bytes)


def _at_once(groups: Sequence["_Group"], search: SearchConfig) -> Iterator[list["_Group"]]:
    """Yield runs of groups that are searched at once.

    They have one epsilon, and their tokens, which a search copies, take a quarter of its memory. A backend that takes
    a tile at a time gains nothing from many groups, and gets one.
    """
    waiting, taken = [], 0
    for group in groups:
        size = sum(group.hidden_states[i].nbytes for i in group.measured)
        most = search_bytes(search.max_cost_bytes, group.device) / 4
        if waiting and (not group.shares(search) or waiting[0].epsilon != group.epsilon or taken + size > most):
            yield waiting
            waiting, taken = [], 0
        waiting, taken = [*waiting, group], taken + size
    if waiting:
        yield waiting


def _prepared(groups, config: ShearConfig) -> list["_Group"]:
    """Return the groups with their norms, after a single wait for the device."""
    found = []
    for hidden_states, correct in groups:
        hidden_states = [torch.from_numpy(h) if isinstance(h, np.ndarray) else h for h in hidden_states]
        correct = [outcome.item() if hasattr(outcome, "item") else outcome for outcome in correct]
        _check(hidden_states, correct)
        found.append((hidden_states, correct))
    lengths = [[len(h) for h in hidden_states] for hidden_states, _ in found]
    norms = (
        torch.cat([token_norms(h) for hidden_states, _ in found for h in hidden_states])
        .cpu()
        .split(list(map(sum, lengths)))
    )
    return [
        _Group(hidden_states, correct, [part.sum().item() for part in of_group.split(counts)], config)
        for (hidden_states, correct), of_group, counts in zip(found, norms, lengths, strict=True)
    ]


class _Group:
    """Measured rollouts of a group."""

    def __init__(
        self, hidden_states: list[torch.Tensor], correct: list[bool | None], norms: list[float], config: ShearConfig
    ):
        """`norms`: the sum of each rollout's token norms. The other arguments are as in `shear_weights`."""
        self._config, self.hidden_states, self.device = config, hidden_states, hidden_states[0].device
        self.nonfinite = [not total < _MOST_NORM for total in norms]
        known = [len(h) > 0 and outcome is not None for h, outcome in zip(self.hidden_states, correct, strict=True)]
        self.measured = [i for i, usable in enumerate(known) if usable and not self.nonfinite[i]]
        tokens = sum(len(self.hidden_states[i]) for i in self.measured)
        self.mean_norm = sum(norms[i] for i in self.measured) / tokens if tokens else 0.0
        self.sides = tuple([i for i in self.measured if correct[i] == outcome] for outcome in (True, False))
        self.is_mixed = all(self.sides) and self.mean_norm > _LEAST_NORM

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the costs between tokens of the two sides, of a mixed group, in units of nbar."""
        return cost_spread(*(spans.tokens for spans in self.spans()), self.mean_norm)

    @cached_property
    def epsilon(self) -> float:
        """Entropic regularisation of a mixed group, in units of nbar."""
        spread = 0.0 if self._config.epsilon_spread is None else self.spread
        return self._config.epsilon_in_norms(self.mean_norm, spread)

    def spans(self) -> tuple[Spans, Spans]:
        """Cut the correct and the incorrect rollouts of a mixed group into spans; this copies their tokens."""
        states = [[self.hidden_states[i] for i in side] for side in self.sides]
        return tuple(Spans.pack(side, self._config, self.mean_norm) for side in states)

    def backend(self, search: SearchConfig) -> type[SinkhornPairs]:
        return choose_backend(search.backend, self.device.type, self._config.window)

    def shares(self, search: SearchConfig) -> bool:
        """Say whether the search can take other groups as well."""
        return self._config.distance == "sinkhorn" and self.backend(search).together is not None


def pool_spans(distances: torch.Tensor, starts: torch.Tensor, length: int, window: int, pool: str) -> torch.Tensor:
    """Return, for each token, the largest or mean distance of the spans that cover it: (K,) -> (T,) float32.

    `pool` is one of `config.shear.POOLS`.

    Example: spans [0, 3) and [2, 5) with distances 1 and 2, pool "max" -> 1, 1, 2, 2, 2.
    """
    token = torch.arange(length, device=starts.device)
    last = torch.searchsorted(starts, token, right=True) - 1
    first = torch.searchsorted(starts, token - window, right=True)  # spans of earlier starts end before the token
    spans = first[:, None] + torch.arange(int((last - first).max()) + 1, device=starts.device)
    covers = spans <= last[:, None]
    values = distances[spans.clamp(max=len(distances) - 1)]
    if pool == "max":
        return torch.where(covers, values, -torch.inf).amax(1)
    assert pool == "mean", pool
    return torch.where(covers, values, 0.0).sum(1) / covers.sum(1)


def normalize_weights(
    weights: list[torch.Tensor], normalize: str, mean_norm: float, distance: str
) -> list[torch.Tensor]:
    """Convert the weights (T_i,) of the measured rollouts, none of them empty, from units of nbar.

    `cross_rollout` keeps them. `none` multiplies by nbar, except for cosine and mmd, which have no units. `per_rollout`
    multiplies a rollout's weights by (mean weight of the group's tokens / mean weight of the rollout's tokens): all
    rollouts then have the same mean weight. Weights that are all 0 become that mean.
    """
    if normalize == "cross_rollout":
        return weights
    if normalize == "per_rollout":
        group_mean = torch.cat(weights).mean()
        means = [weight.mean() for weight in weights]
        return [
            torch.where(mean > 0, weight * (group_mean / mean), group_mean)
            for weight, mean in zip(weights, means, strict=True)
        ]
    assert normalize == "none", normalize
    return weights if distance in _UNITLESS else [weight * mean_norm for weight in weights]


def _check(hidden_states: Sequence[torch.Tensor], correct: Sequence[bool]) -> None:
    if len(hidden_states) != len(correct):
        raise ValueError(f"one outcome a rollout is needed: got {len(hidden_states)} rollouts, {len(correct)} outcomes")
    for i, outcome in enumerate(correct):
        if outcome is not None and not isinstance(outcome, bool):
            raise ValueError(
                f"outcomes must be True, False or None: rollout {i} has {outcome!r}; use score >= threshold for scores"
            )
    if len(hidden_states) == 0:
        raise ValueError("a group needs at least one rollout: got none")
    for i, h in enumerate(hidden_states):
        if h.ndim != 2 or not h.is_floating_point():
            raise ValueError(
                f"hidden states must be floating-point tensors (T, d): rollout {i} is {h.dtype} of shape {(*h.shape,)}"
            )
    for what in ("hidden size", "device"):
        kinds = {str(h.device) if what == "device" else h.shape[1] for h in hidden_states}
        if len(kinds) > 1:
            raise ValueError(f"all rollouts must have one {what}: got {', '.join(map(str, sorted(kinds)))}")


def _owners(side: Sequence[int], starts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rollout of every span of a side, and the span's index in its rollout: (K,) int64 each."""
    counts = [len(starts[i]) for i in side]
    return torch.tensor(side).repeat_interleave(torch.tensor(counts)), torch.cat([torch.arange(n) for n in counts])
