"""The distances between two spans, behind one interface: two sides of spans in, a matrix of distances out.

A span is the empirical measure with uniform mass on its own tokens; C is the matrix of Euclidean distances between the
tokens of two spans, in units of nbar. To add a distance that C determines, write a function of `CostBlocks` and name it
in `_BLOCKWISE`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from openrlhf_shear.ot.blocks import CostBlocks, map_span_pairs, map_spans
from openrlhf_shear.ot.geometry import Spans, token_costs
from openrlhf_shear.ot.sinkhorn import solve_sinkhorn

# Two sides -> (K_a, K_b) distances, and (K_a, K_b) bool: the solve behind it converged.
SpanDistance = Callable[[Spans, Spans], tuple[torch.Tensor, torch.Tensor]]

# The plan is first order in the marginal error where the dual value is second order.
_PLAN_TOLERANCE = 1e-4
_BANDWIDTH_TOKENS = 512


def sinkhorn(blocks: CostBlocks, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`W_eps = min <C, gamma> + eps KL(gamma | P x Q)`, the paper's distance."""
    result = solve_sinkhorn(blocks, epsilon)
    return result.value, result.converged


def sinkhorn_transport(blocks: CostBlocks, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`<C, gamma>` of the entropic plan, without the KL."""
    result = solve_sinkhorn(blocks, epsilon, tolerance=_PLAN_TOLERANCE)
    return result.transport_cost(blocks, epsilon), result.converged


def wasserstein(blocks: CostBlocks, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`W_1 = min <C, gamma>`, exact: POT's network simplex in float64 on the CPU, one pair at a time."""
    from ot import emd2  # POT, heavy to import; our own `ot` is openrlhf_shear.ot

    values, converged = [], []
    costs, rows, columns = (t.cpu().numpy() for t in (blocks.cost.double(), blocks.rows.sum(1), blocks.columns.sum(1)))
    for cost, n, m in zip(costs, rows, columns, strict=True):
        value, log = emd2([], [], cost[:n, :m].copy(), log=True)  # no masses: POT's uniform ones
        values.append(float(value))
        converged.append(log["warning"] is None)
    device = blocks.cost.device
    return torch.tensor(values, dtype=torch.float32, device=device), torch.tensor(converged, device=device)


def chamfer(blocks: CostBlocks, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`(mean_i min_j C_ij + mean_j min_i C_ij) / 2`."""
    means = []
    for nearest, there in ((blocks.cost.amin(2), blocks.rows), (blocks.cost.amin(1), blocks.columns)):
        means.append(nearest.masked_fill(~there, 0).sum(1) / there.sum(1))
    value = (means[0] + means[1]) / 2
    return value, torch.ones_like(value, dtype=torch.bool)


_BLOCKWISE = {
    "sinkhorn": sinkhorn,
    "sinkhorn_transport": sinkhorn_transport,
    "wasserstein": wasserstein,
    "chamfer": chamfer,
}


def make_distance(name: str, epsilon: float, max_bytes: int) -> SpanDistance:
    """The distance called `name` (one of `config.DISTANCES`).

    Args:
        epsilon: entropic regularisation in units of nbar; read by the two Sinkhorn distances.
        max_bytes: bound on the extra memory of a call.

    Raises:
        ValueError: no such distance.
    """
    if name in _BLOCKWISE:
        solve = _BLOCKWISE[name]
        return lambda a, b: map_span_pairs(lambda blocks: solve(blocks, epsilon), a, b, max_bytes)
    if name == "mmd":
        return lambda a, b: _mmd(a, b, max_bytes)
    if name == "cosine":
        return _cosine
    raise ValueError(f"no distance is called {name!r}; use one of {', '.join([*_BLOCKWISE, 'mmd', 'cosine'])}")


def _mmd(a: Spans, b: Spans, max_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`sqrt(mean k(x, x') + mean k(y, y') - 2 mean k(x, y))`, the root of the biased (V-statistic) estimate.

    `k(x, y) = exp(-||x - y||^2 / (2 sigma^2))`, with sigma from `median_bandwidth` over the tokens of both sides.
    """
    sigma = median_bandwidth(a, b)

    def mean_kernel(blocks: CostBlocks) -> tuple[torch.Tensor, torch.Tensor]:
        kernel = (blocks.cost.double() / sigma).square_().div_(-2).exp_()
        value = kernel.sum((1, 2)) / (blocks.rows.sum(1) * blocks.columns.sum(1))
        return value, torch.ones_like(value, dtype=torch.bool)

    max_bytes //= 2  # float64
    between, flags = map_span_pairs(mean_kernel, a, b, max_bytes)
    within_a, within_b = map_spans(mean_kernel, a, max_bytes), map_spans(mean_kernel, b, max_bytes)
    squared = within_a[:, None] + within_b - 2 * between
    return squared.clamp(min=0).sqrt().float(), flags


def median_bandwidth(a: Spans, b: Spans) -> torch.Tensor:
    """The median rule: sigma = median of `||x - y||` over the pairs of two tokens of the group, in units of nbar.

    Of an even number of distances the lower middle one. Of more than 512 tokens, 512 spread evenly over the correct
    rollouts' tokens followed by the incorrect ones' (token `floor(i * T / 512)`). If the median is 0, the mean of the
    positive distances; if there are none, 1 (the MMD is then 0 for any sigma).

    Returns:
        () float64.
    """
    total = len(a.tokens) + len(b.tokens)
    count = min(total, _BANDWIDTH_TOKENS)
    chosen = (torch.arange(count) * total // count).to(a.tokens.device)
    first = chosen[chosen < len(a.tokens)]
    tokens = torch.cat([a.tokens[first], b.tokens[chosen[len(first) :] - len(a.tokens)]])
    costs = token_costs(tokens, tokens, a.scale, workspace_bytes=2**20)
    upper = torch.triu_indices(count, count, offset=1, device=tokens.device)
    pairs = costs[upper[0], upper[1]].double()
    positive = pairs > 0
    mean = (pairs.sum() / positive.sum()).nan_to_num(nan=1.0)
    median = pairs.median()
    return torch.where(median > 0, median, mean)


def _cosine(a: Spans, b: Spans) -> tuple[torch.Tensor, torch.Tensor]:
    """`1 - cos(mean of the span, mean of the other)`, in [0, 2]; 1 where a mean is 0 and has no direction."""

    def directions(spans: Spans) -> torch.Tensor:
        ends = (spans.starts + spans.sizes).tolist()
        means = [spans.tokens[i:j].double().mean(0) for i, j in zip(spans.starts.tolist(), ends, strict=True)]
        return torch.nn.functional.normalize(torch.stack(means), dim=1, eps=torch.finfo(torch.float64).tiny)

    value = (1 - directions(a) @ directions(b).T).clamp(min=0).float()
    return value, torch.ones_like(value, dtype=torch.bool)
