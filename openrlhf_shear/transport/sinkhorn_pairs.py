"""Entropic transport between the span pairs of a tile: the reference solver, in plain PyTorch on any device.

    W_eps >= D(f, g) = <a, f> + <b, g>,   g_j = -eps log sum_i a_i exp((f_i - C_ij) / eps)

holds for any f, and g_j does not depend on which columns a span holds. So the f of one solved pair bounds the distances
of its row span to all column spans at once.

Before any pair is solved, one exact iteration of all pairs bounds them. From g = 0 it makes

    f_i = -eps log mean_j exp(-C_ij / eps),   j in the column span,

which no other row changes, and then the best g. D(f, 0), the soft-RWMD bound, is never larger.
"""

import math
from collections.abc import Callable, Sequence

import torch

from openrlhf_shear.transport.geometry import Spans
from openrlhf_shear.transport.race import PairDistance
from openrlhf_shear.transport.sinkhorn import MAX_ITERATIONS, TOLERANCE, SinkhornResult, solve_sinkhorn
from openrlhf_shear.transport.tiles import Tile


class SinkhornPairs:
    """The paper's distance, `W_eps = min <C, gamma> + eps KL(gamma | P x Q)`, for the pairs of a tile."""

    exact_bounds = False
    MAX_WINDOW: float = math.inf  # tokens of the longest span that the solver takes
    together: Callable[[Sequence[Tile], float], PairDistance] | None = None  # the pairs of several tiles at once

    def __init__(self, tile: Tile, epsilon: float):
        self.tile, self.epsilon = tile, epsilon  # in units of nbar

    def solve(
        self,
        pairs: torch.Tensor,
        limits: torch.Tensor | None = None,
        tolerance: float = TOLERANCE,
        max_iterations: int = MAX_ITERATIONS,
    ) -> SinkhornResult:
        """Solve pairs until they converge, or until their lower bound exceeds their limit.

        Args:
            pairs: (P, 2) int64: spans of the tile's `a` and `b`.
            limits: (P,) float32, in units of nbar; None for no limit.
        """
        limits = unlimited(pairs) if limits is None else limits
        solved = []
        for part, blocks in self.tile.batches(pairs):
            solved.append(solve_sinkhorn(blocks, self.epsilon, tolerance, max_iterations, limits[part]))
        return SinkhornResult.cat(solved)

    def bounds(self, f: torch.Tensor | None = None, g: torch.Tensor | None = None) -> torch.Tensor:
        """Return lower bounds of all distances, (K_a, K_b) float32: the larger of the bounds from f and from g.

        Without potentials, return the dual values after one exact iteration.

        Args:
            f: (K_a, n) potentials of the row spans, in units of nbar, any value at padding.
            g: (K_b, m) potentials of the column spans, likewise; given if and only if f is.
        """
        if f is g is None:
            return self._first_bounds()
        return torch.maximum(self._dual_bounds(f, transposed=False), self._dual_bounds(g, transposed=True).T)

    def _first_bounds(self) -> torch.Tensor:
        a, b, bounds = self.tile.a, self.tile.b, []
        rows, real = a.positions(torch.arange(len(a), device=self.tile.device))
        sizes = real.sum(1)
        most = max(1, self.tile.max_bytes // (4 * rows.shape[1] * int(b.sizes.max())))
        for block in b.blocks(self.tile.cost.T):
            exponents = block / -self.epsilon
            f = -exponents.logsumexp(0)  # up to a constant, which g takes back
            terms = exponents.add_(f).exp_()
            parts = zip(rows.split(most), real.split(most), strict=True)
            sums = torch.cat([(terms[:, part] * there).sum(2) for part, there in parts], 1)
            # Terms may underflow; with `tiny` for each, a sum is never too small, and its value never too large.
            logs = (sums / sizes + torch.finfo(sums.dtype).tiny).log()
            bounds.append(self.epsilon * (a.means(f) - logs.double().mean(0)))
        return torch.stack(bounds, 1).float()

    def _dual_bounds(self, potentials: torch.Tensor, transposed: bool) -> torch.Tensor:
        """Return the bounds from the potentials of the rows, (K_a, K_b), or of the columns, (K_b, K_a)."""

        def smallest(f: torch.Tensor, block: torch.Tensor, others: Spans) -> torch.Tensor:
            log_sums = torch.logsumexp((f[:, None] - block) / self.epsilon, dim=0)
            return self.epsilon * (math.log(len(f)) - others.means(log_sums))

        return self.tile.dual_bounds(potentials, smallest, transposed)


def unlimited(pairs: torch.Tensor) -> torch.Tensor:
    """Return limits (P,) that drop no pair."""
    return torch.full((len(pairs),), torch.inf, device=pairs.device)
