"""The pairs of several tiles at once, by a solver for each tile: what a backend that takes several tiles must equal."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch

from openrlhf_shear.transport import SinkhornPairs, SinkhornResult
from openrlhf_shear.transport.tiles import Tile


class Together:
    """A `PairDistance` of several tiles."""

    exact_bounds = False

    def __init__(self, tiles: Sequence[Tile], solver: Callable[[Tile], SinkhornPairs]):
        self.each = [solver(tile) for tile in tiles]
        self.counts = [len(tile.a) for tile in tiles], [len(tile.b) for tile in tiles]

    def bounds(self, f: torch.Tensor | None = None, g: torch.Tensor | None = None) -> torch.Tensor:
        given = [[None] * len(self.each) if x is None else x.split(n) for x, n in zip((f, g), self.counts, strict=True)]
        made = []
        for solver, *own in zip(self.each, *given, strict=True):
            widths = int(solver.tile.a.sizes.max()), int(solver.tile.b.sizes.max())
            made.append(
                solver.bounds(*(x if x is None else x[:, :n] for x, n in zip(own, widths, strict=True))).flatten()
            )
        return torch.cat(made)

    def solve(self, pairs: torch.Tensor, limits: torch.Tensor) -> SinkhornResult:
        first = [list(accumulate(n, initial=0)) for n in self.counts]
        made, places = [], []
        for t, solver in enumerate(self.each):
            which = torch.nonzero((pairs[:, 0] >= first[0][t]) & (pairs[:, 0] < first[0][t + 1]))[:, 0]
            assert (pairs[which, 1] >= first[1][t]).all() and (pairs[which, 1] < first[1][t + 1]).all()
            if len(which):
                offset = torch.tensor([first[0][t], first[1][t]])
                made.append(solver.solve(pairs[which] - offset, limits[which]))
                places.append(which)
        n, m = (max(result.__dict__[name].shape[1] for result in made) for name in "fg")
        return _permuted(SinkhornResult.cat([result.padded(n, m) for result in made]), torch.cat(places).argsort())


def _permuted(result: SinkhornResult, order: torch.Tensor) -> SinkhornResult:
    return SinkhornResult(*(values[order] for values in vars(result).values()))
