"""Entropic transport between the span pairs of a tile: the reference, in plain PyTorch on any device.

    W_eps >= D(f, g) = <a, f> + <b, g>,   g_j = -eps log sum_i a_i exp((f_i - C_ij) / eps)

holds for any f. So the f of one solved pair bounds the distances of its row span to every column span at once: g_j does
not depend on which columns a span holds. f = 0 gives the soft-RWMD bound.
"""

import math
from abc import abstractmethod

import torch

from openrlhf_shear.ot.geometry import Spans
from openrlhf_shear.ot.sinkhorn import MAX_ITERATIONS, TOLERANCE, SinkhornResult, solve_sinkhorn
from openrlhf_shear.ot.tiles import Tile


class SinkhornPairs:
    """`W_eps = min <C, gamma> + eps KL(gamma | P x Q)` of the pairs of a tile, the paper's distance."""

    exact_bounds = False
    MAX_WINDOW: float = math.inf  # tokens of the longest span that can be solved

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
        limits = torch.full((len(pairs),), torch.inf, device=pairs.device) if limits is None else limits
        solved = []
        for part, blocks in self.tile.batches(pairs):
            solved.append(solve_sinkhorn(blocks, self.epsilon, tolerance, max_iterations, limits[part]))
        return SinkhornResult.cat(solved)

    def bounds(self, f: torch.Tensor | None = None, g: torch.Tensor | None = None) -> torch.Tensor:
        """Lower bounds of all distances, (K_a, K_b) float32: the larger of those from the potentials of either side.

        Args:
            f: (K_a, n) potentials of the row spans, in units of nbar, anything at padding; None for 0.
            g: (K_b, m) of the column spans, likewise.
        """
        return torch.maximum(self._dual_bounds(f, transposed=False), self._dual_bounds(g, transposed=True).T)

    def _dual_bounds(self, potentials: torch.Tensor | None, transposed: bool) -> torch.Tensor:
        """The bounds from the potentials of the rows (K_a, K_b), or of the columns (K_b, K_a)."""

        def smallest(f: torch.Tensor, block: torch.Tensor, others: Spans) -> torch.Tensor:
            log_sums = torch.logsumexp((f[:, None] - block) / self.epsilon, dim=0)
            return self.epsilon * (math.log(len(f)) - others.means(log_sums))

        return self.tile.dual_bounds(potentials, smallest, transposed)


class FastPairs(SinkhornPairs):
    """A backend, which flags what leaves the range of float32: that goes to the reference."""

    def solve(
        self,
        pairs: torch.Tensor,
        limits: torch.Tensor | None = None,
        tolerance: float = TOLERANCE,
        max_iterations: int = MAX_ITERATIONS,
    ) -> SinkhornResult:
        limits = torch.full((len(pairs),), torch.inf, device=pairs.device) if limits is None else limits
        result, flagged = self._solve(pairs, limits, tolerance, max_iterations)
        again = torch.nonzero(flagged)[:, 0]
        if len(again):
            result.put(again, super().solve(pairs[again], limits[again], tolerance, max_iterations))
        return result

    @abstractmethod
    def _solve(
        self, pairs: torch.Tensor, limits: torch.Tensor, tolerance: float, max_iterations: int
    ) -> tuple[SinkhornResult, torch.Tensor]:
        """As `solve`, with (P,) bool: what has to be solved again."""
