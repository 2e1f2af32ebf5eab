"""The race of the pairs of tiles: the most promising pair of each span first, and no pair that cannot be a minimum.

Tiles of several groups can race at once, as one list of pairs: tile after tile, row-major. A GPU then runs a tenth as
many small kernels. A pair's fate depends only on the pairs of its own two spans.

Legend: K_a/K_b spans of all tiles' rows/columns, P pairs of all tiles.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from openrlhf_shear.transport.copies import to_device
from openrlhf_shear.transport.sinkhorn import SinkhornResult
from openrlhf_shear.transport.tiles import Tile

_PAIR_BYTES = 16  # of a solved pair, per token of its spans: potentials, here and in the solver


class PairDistance(Protocol):
    """A symmetric distance on the span pairs of tiles."""

    exact_bounds: bool  # whether `bounds()` are the distances themselves, and no pair needs solving

    def bounds(self, f: torch.Tensor | None = None, g: torch.Tensor | None = None) -> torch.Tensor:
        """Return lower bounds, float32: (K_a, K_b) of one tile, (P,) of several.

        They are sharper with potentials (K_a, n) and (K_b, m), of one solved pair a span.
        """

    def solve(self, pairs: torch.Tensor, limits: torch.Tensor | None = None) -> SinkhornResult:
        """Solve pairs (N, 2) int64; drop a pair once its distance is known to exceed its limit (N,)."""


class Race:
    """The race of the pairs of tiles against the best distances found so far.

    Everything stays on the device of the tokens. Only the number of remaining pairs comes back from it.
    """

    def __init__(
        self,
        tiles: Sequence[Tile],
        distance: PairDistance,
        prune: bool,
        best: tuple[torch.Tensor, torch.Tensor] | None = None,
    ):
        """
        Args:
            prune: whether to drop pairs that are no minimum.
            best: (K_a,) and (K_b,) float32, the spans' best distances in other tiles; they are kept up to date.
        """
        self.distance, self.prune, self.tiles = distance, prune, tiles
        self.rows, self.columns = _spans_of_pairs(tiles)
        count, device = len(self.rows), self.rows.device
        self.lower_bound = torch.full((count,), -torch.inf, dtype=torch.float32, device=device)
        self.solved, self.converged = torch.zeros((2, count), dtype=torch.bool, device=device)
        self.iterations = torch.zeros(count, dtype=torch.int32, device=device)
        counts = (sum(len(tile.a) for tile in tiles), sum(len(tile.b) for tile in tiles))
        self.best_a, self.best_b = best or tuple(none_yet(k, device) for k in counts)

    def run(self) -> None:
        if self.distance.exact_bounds:
            self.lower_bound.copy_(self.distance.bounds().flatten())
            self.solved.fill_(True), self.converged.fill_(True)
            return
        if self.prune:
            self._sharpen(self.distance.bounds())
            sides = (self.rows, len(self.best_a)), (self.columns, len(self.best_b))
            seeds = torch.cat([least(self.lower_bound, spans, count)[1] for spans, count in sides])
            unique, where = torch.unique(seeds, return_inverse=True)
            solved = self._solve(unique)
            of_rows, of_columns = where.split([count for _, count in sides])
            self._sharpen(self.distance.bounds(solved.f[of_rows], solved.g[of_columns]))
        left = torch.nonzero(~self.solved & self._matters(self.lower_bound, slice(None)).any(1))[:, 0]
        left = left[self.lower_bound[left].argsort(stable=True)]
        ranks = torch.stack([_ranks(spans[left]) for spans in (self.rows, self.columns)], 1)
        tokens = max(int(tile.a.sizes.max() + tile.b.sizes.max()) for tile in self.tiles)
        most = max(1, self.tiles[0].max_bytes // (_PAIR_BYTES * tokens))
        turn = 1
        while len(left):
            matters = self._matters(self.lower_bound[left], left)
            now = (matters & (ranks < turn)).any(1)
            later = matters.any(1) & ~now
            order = torch.where(now, 0, torch.where(later, 1, 2)).argsort(stable=True)
            solved, remaining = torch.stack([now.sum(), later.sum()]).tolist()
            for which in order[:solved].split(most) if solved else ():
                self._solve(left[which])
            rest = order[solved : solved + remaining]
            left, ranks, turn = left[rest], ranks[rest], 3 * turn

    def _sharpen(self, bounds: torch.Tensor) -> None:
        sharper = torch.fmax(self.lower_bound, bounds.flatten())  # a NaN is no bound
        self.lower_bound = torch.where(self.solved, self.lower_bound, sharper)

    def _limits(self, pairs: torch.Tensor | slice) -> torch.Tensor:
        """Return up to which distance each pair still matters to its row span and to its column span, (N, 2)."""
        limits = torch.stack([self.best_a[self.rows[pairs]], self.best_b[self.columns[pairs]]], 1)
        return limits if self.prune else torch.full_like(limits, torch.inf)

    def _matters(self, lower_bound: torch.Tensor, pairs: torch.Tensor | slice) -> torch.Tensor:
        return lower_bound[:, None] <= self._limits(pairs)

    def _solve(self, which: torch.Tensor) -> SinkhornResult:
        rows, columns = self.rows[which], self.columns[which]
        result = self.distance.solve(torch.stack([rows, columns], 1), self._limits(which).amax(1))
        value, dropped = result.value, result.dropped
        self.lower_bound[which] = torch.where(dropped, torch.maximum(value, self.lower_bound[which]), value)
        self.solved[which] = ~dropped
        self.converged[which] = result.converged & ~dropped
        self.iterations[which] = result.iterations.int()
        candidates = value.masked_fill(dropped, torch.inf)
        self.best_a.scatter_reduce_(0, rows, candidates, "amin")
        self.best_b.scatter_reduce_(0, columns, candidates, "amin")
        return result


def none_yet(count: int, device: torch.device) -> torch.Tensor:
    """Return the best distances of spans without a solved pair, (count,) float32."""
    return torch.full((count,), torch.inf, dtype=torch.float32, device=device)


def least(values: torch.Tensor, spans: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least value of each of `count` spans, and the first pair that has it, (count,) each.

    Every span needs a pair. A span with a NaN has a NaN as its least value.

    >>> [each.tolist() for each in least(torch.tensor([3.0, 1.0, 1.0, 2.0]), torch.tensor([0, 0, 0, 1]), 2)]
    [[1.0, 2.0], [1, 3]]
    """
    lowest = values.new_full((count,), torch.inf).scatter_reduce_(0, spans, values, "amin")
    places = torch.arange(len(values), device=values.device)
    places = torch.where(values > lowest[spans], len(values), places)
    return lowest, places.new_full((count,), len(values)).scatter_reduce_(0, spans, places, "amin")


def _spans_of_pairs(tiles: Sequence[Tile]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row span and the column span of each pair, (P,) int64, counted over all tiles."""
    opposing, shift, pairs, first_column = [], [], 0, 0
    for tile in tiles:
        rows, columns = len(tile.a), len(tile.b)
        opposing.append(torch.full((rows,), columns))
        shift.append(first_column - pairs - columns * torch.arange(rows))
        pairs, first_column = pairs + rows * columns, first_column + columns
    opposing, shift = to_device(torch.stack([torch.cat(opposing), torch.cat(shift)]), tiles[0].device)
    rows = torch.repeat_interleave(opposing, output_size=pairs)
    return rows, torch.arange(pairs, device=rows.device) + shift[rows]


def _ranks(spans: torch.Tensor) -> torch.Tensor:
    """Return each pair's rank among the pairs of its span, in the order given: (N,) int64, from 0."""
    order = spans.argsort(stable=True)
    grouped = spans[order]
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order), device=order.device) - torch.searchsorted(grouped, grouped)
    return ranks
