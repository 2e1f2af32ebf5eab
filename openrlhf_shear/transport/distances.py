"""Distances between two spans, behind one interface: a tile in, a `PairDistance` on its pairs out.

A span is the uniform measure on its tokens; C holds the Euclidean distances between tokens, in units of nbar. The
search prunes with these lower bounds:

    sinkhorn       Sinkhorn's dual value, at any iterate (`sinkhorn_pairs`)
    wasserstein    Kantorovich's dual value of potentials made feasible (`transport_bounds`)
    chamfer, mmd, cosine   none: computing all pairs at once costs less than a bound for each pair
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from openrlhf_shear.transport.copies import to_device
from openrlhf_shear.transport.geometry import Spans, token_costs
from openrlhf_shear.transport.race import PairDistance
from openrlhf_shear.transport.sinkhorn import SinkhornResult
from openrlhf_shear.transport.sinkhorn_pairs import SinkhornPairs
from openrlhf_shear.transport.tiles import Tile

_SCOUT_ITERATIONS = 20  # Sinkhorn iterations, after which the potentials tell most pairs apart
_BANDWIDTH_TOKENS = 512


def make_distance(
    name: str, epsilon: float, correct: Spans, incorrect: Spans, sinkhorn: type[SinkhornPairs] = SinkhornPairs
) -> Callable[[Tile], PairDistance]:
    """Return the distance called `name` (one of `config.shear.DISTANCES`) between spans of two sides.

    Args:
        epsilon: entropic regularisation in units of nbar; `wasserstein` only prunes with it, and its result is exact.
        correct, incorrect: the sides; `mmd` takes its bandwidth from their tokens.
        sinkhorn: the solver of entropic problems: the reference, or a backend.

    Raises ValueError: no distance has this name.
    """
    sigma = median_bandwidth(correct, incorrect) if name == "mmd" else None
    known = {
        "sinkhorn": lambda tile: sinkhorn(tile, epsilon),
        "wasserstein": lambda tile: WassersteinPairs(tile, sinkhorn(tile, epsilon)),
        "mmd": lambda tile: ClosedForm(lambda: mmd(tile, sigma)),
        "chamfer": lambda tile: ClosedForm(lambda: chamfer(tile)),
        "cosine": lambda tile: ClosedForm(lambda: cosine(tile)),
    }
    if name not in known:
        raise ValueError(f"no distance is called {name!r}; use one of {', '.join(known)}")
    return known[name]


def make_together(
    name: str, epsilon: float, sinkhorn: type[SinkhornPairs]
) -> Callable[[Sequence[Tile]], PairDistance] | None:
    """Return the distance called `name` on the pairs of several tiles at once; None if it takes a tile at a time."""
    together = sinkhorn.together
    return None if name != "sinkhorn" or together is None else lambda tiles: together(tiles, epsilon)


class WassersteinPairs:
    """Exact `W_1 = min <C, gamma>`: POT's network simplex in float64 on the CPU, one pair at a time."""

    exact_bounds = False

    def __init__(self, tile: Tile, sinkhorn: SinkhornPairs):
        self.tile, self.sinkhorn = tile, sinkhorn

    def bounds(self, f: torch.Tensor | None = None, g: torch.Tensor | None = None) -> torch.Tensor:
        return transport_bounds(self.tile, f, g)

    def solve(self, pairs: torch.Tensor, limits: torch.Tensor | None = None) -> SinkhornResult:
        """Run a few iterations first, and finish only the pairs whose bound from those potentials is within the limit.

        Arguments as in `SinkhornPairs.solve`.
        """
        result = self.sinkhorn.solve(pairs, max_iterations=_SCOUT_ITERATIONS)
        bound = torch.cat([_feasible_value(blocks, result[part]) for part, blocks in self.tile.batches(pairs)])
        going = torch.ones_like(bound, dtype=torch.bool) if limits is None else bound <= limits
        result.value.copy_(bound), result.dropped.copy_(~going)
        going = torch.nonzero(going)[:, 0]
        if len(going):
            finished = self._finish(pairs[going])
            finished.iterations.add_(_SCOUT_ITERATIONS)
            result.put(going, finished)
        return result

    def _finish(self, pairs: torch.Tensor) -> SinkhornResult:
        from ot import emd2  # POT, slow to import; not our package openrlhf_shear.transport

        result = self.sinkhorn.solve(pairs, max_iterations=1)  # for its shapes; every value is replaced below
        done = 0
        for _, blocks in self.tile.batches(pairs):
            costs, rows, columns = (t.cpu().numpy() for t in (blocks.cost.double(), blocks.rows, blocks.columns))
            for cost, n, m in zip(costs, rows.sum(1), columns.sum(1), strict=True):
                value, log = emd2([], [], cost[:n, :m].copy(), log=True)  # empty masses mean uniform masses to POT
                result.value[done], result.converged[done] = float(value), log["warning"] is None
                result.f[done, :n], result.g[done, :m] = torch.from_numpy(log["u"]), torch.from_numpy(log["v"])
                done += 1
        result.iterations.zero_(), result.marginal_error.zero_()
        return result


def transport_bounds(tile: Tile, f: torch.Tensor | None = None, g: torch.Tensor | None = None) -> torch.Tensor:
    """Lower bounds of `W_1` by Kantorovich duality, `<a, f> + <b, g>` with `g_j = min_i C_ij - f_i`, from both sides.

    f = 0 gives RWMD (Kusner et al. 2015). Arguments and shapes are those of `SinkhornPairs.bounds`.
    """

    def lowest(f: torch.Tensor, block: torch.Tensor, others: Spans) -> torch.Tensor:
        return others.means((block - f[:, None]).amin(0))

    return torch.maximum(tile.dual_bounds(f, lowest), tile.dual_bounds(g, lowest, transposed=True).T)


def _feasible_value(blocks, result: SinkhornResult) -> torch.Tensor:
    """(P,) Kantorovich's dual values of Sinkhorn's f, with the largest feasible g."""
    f = result.f.masked_fill(~blocks.rows, -torch.inf)
    g = (blocks.cost - f[:, :, None]).amin(1).masked_fill(~blocks.columns, 0)
    a, b = blocks.masses()
    return (a * result.f).sum(1) + (b * g).sum(1)


@dataclass(frozen=True)
class ClosedForm:
    """Distance that is computed for all pairs of a tile at once: its bounds are exact, and no pair is left to solve."""

    values: Callable[[], torch.Tensor]
    exact_bounds = True

    def bounds(self, f: torch.Tensor | None = None, g: torch.Tensor | None = None) -> torch.Tensor:
        return self.values()


def chamfer(tile: Tile) -> torch.Tensor:
    """(K_a, K_b) float32: `(mean_i min_j C_ij + mean_j min_i C_ij) / 2` of every pair."""
    sides = []
    for cost, spans, others in ((tile.cost, tile.a, tile.b), (tile.cost.T, tile.b, tile.a)):
        sides.append(others.means(torch.stack([block.amin(0) for block in spans.blocks(cost)])))
    return ((sides[0] + sides[1].T) / 2).float()


def mmd(tile: Tile, sigma: torch.Tensor) -> torch.Tensor:
    """(K_a, K_b) float32: `sqrt(mean k(x, x') + mean k(y, y') - 2 mean k(x, y))`, the biased (V-statistic) estimate.

    `k(x, y) = exp(-||x - y||^2 / (2 sigma^2))`, with sigma from `median_bandwidth` over the tokens of both sides.
    """
    between = _mean_kernels(tile.cost, tile.a, tile.b, sigma)
    within = []
    for spans in (tile.a, tile.b):
        means = []
        for k in range(len(spans)):
            span = spans.part(slice(k, k + 1))
            cost = token_costs(span.tokens, span.tokens, span.scale, tile.max_bytes)
            means.append(_mean_kernels(cost, span, span, sigma)[0])
        within.append(torch.cat(means))
    squared = within[0][:, None] + within[1] - 2 * between
    return squared.clamp(min=0).sqrt().float()


def _mean_kernels(cost: torch.Tensor, a: Spans, b: Spans, sigma: torch.Tensor) -> torch.Tensor:
    """(K_a, K_b) float64 means of the kernel over the blocks, computed one row span at a time."""
    kernels = ((block.double() / sigma).square_().div_(-2).exp_() for block in a.blocks(cost))
    return torch.stack([b.means(kernel.mean(0)) for kernel in kernels])


def median_bandwidth(a: Spans, b: Spans) -> torch.Tensor:
    """Return sigma, () float64, by the median rule: the median of `||x - y||` over the group's pairs of tokens.

    For an even number of distances, the median is the lower of the two in the middle. A group of more than 512 tokens
    is reduced to 512, spread evenly over the correct rollouts' tokens followed by those of the incorrect rollouts
    (token `floor(i * T / 512)`). If the median is 0, sigma is the mean of the positive distances. If no distance is
    positive, sigma is 1 (the MMD is then 0 for any sigma).
    """
    total = len(a.tokens) + len(b.tokens)
    count = min(total, _BANDWIDTH_TOKENS)
    chosen = torch.arange(count) * total // count
    first = int((chosen < len(a.tokens)).sum())
    chosen = to_device(chosen, a.tokens.device)
    tokens = torch.cat([a.tokens[chosen[:first]], b.tokens[chosen[first:] - len(a.tokens)]])
    costs = token_costs(tokens, tokens, a.scale, workspace_bytes=2**20)
    upper = torch.triu_indices(count, count, offset=1, device=tokens.device)
    pairs = costs[upper[0], upper[1]].double()
    positive = pairs > 0
    mean = (pairs.sum() / positive.sum()).nan_to_num(nan=1.0)
    median = pairs.median()
    return torch.where(median > 0, median, mean)


def cosine(tile: Tile) -> torch.Tensor:
    """(K_a, K_b) float32: `1 - cos(mean of a, mean of b)`, in [0, 2]; 1 where a mean is 0 and has no direction."""

    def directions(spans: Spans) -> torch.Tensor:
        means = [tokens.double().mean(0) for tokens in spans.blocks(spans.tokens)]
        return torch.nn.functional.normalize(torch.stack(means), dim=1, eps=torch.finfo(torch.float64).tiny)

    return (1 - directions(tile.a) @ directions(tile.b).T).clamp(min=0).float()
