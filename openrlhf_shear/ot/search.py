"""The span search: how far each span is from the spans of the opposing rollouts, without solving every pair.

Pairs race: the most promising pair of each span is solved first, its potentials bound all other pairs of the span, and
a pair goes on only while its lower bound stays within the best distance found on either of its two sides. A pair that
is dropped could have been the minimum of neither: the result is the one of solving everything.

Legend: K_c/K_w spans of the correct/incorrect side, K_a/K_b spans of a tile's sides, P pairs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from openrlhf_shear.ot.geometry import Spans
from openrlhf_shear.ot.sinkhorn import SinkhornResult
from openrlhf_shear.ot.tiles import Tile, tiles

_FIRST_BATCH = 256  # pairs that race before the limits are brought up to date; then twice as many, and so on
_PAIR_BYTES = 16  # of a solved pair, per token of its spans: potentials, and room for those of the solver
_SOFTMIN_ERROR = 1e-3  # of the temperature, from the pairs that softmin leaves at their lower bound


class PairDistance(Protocol):
    """A distance on the span pairs of a tile. All distances are symmetric."""

    exact_bounds: bool  # `bounds()` are the distances themselves, and nothing is left to solve

    def bounds(self, f: torch.Tensor | None = None, g: torch.Tensor | None = None) -> torch.Tensor:
        """(K_a, K_b) float32 lower bounds, sharper with the potentials (K_a, n) and (K_b, m) of a pair of each span."""

    def solve(self, pairs: torch.Tensor, limits: torch.Tensor | None = None) -> SinkhornResult:
        """Values of pairs (P, 2), dropped once they are known to exceed their limits (P,)."""


@dataclass(frozen=True)
class SpanSearch:
    """Distances of the spans of two opposing sides in units of nbar, and the evidence, pair by pair and on the CPU."""

    correct: torch.Tensor  # (K_c,) float32 on the device of the tokens
    incorrect: torch.Tensor  # (K_w,) likewise
    lower_bound: torch.Tensor  # (K_c, K_w) float32: no pair is closer. Where `solved`, the distance
    solved: torch.Tensor  # (K_c, K_w) bool; the others were dropped
    converged: torch.Tensor  # (K_c, K_w) bool, of the solved ones: within the solver's tolerance
    iterations: torch.Tensor  # (K_c, K_w) int32, what was spent on each pair

    @property
    def solved_fraction(self) -> float:
        """Of all pairs, those that were solved and not dropped; in (0, 1]."""
        return int(self.solved.sum()) / self.solved.numel()

    @property
    def unconverged_fraction(self) -> float:
        """Of the solves that were not dropped, those that did not reach their tolerance; in [0, 1]."""
        return 1.0 - int(self.converged.sum()) / int(self.solved.sum())

    def nearest(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(K_c,) and (K_w,) int64: the nearest opposing span of each span."""
        distance = self.lower_bound.masked_fill(~self.solved, torch.inf)
        return distance.argmin(1), distance.argmin(0)


def search_spans(
    correct: Spans,
    incorrect: Spans,
    distance: Callable[[Tile], PairDistance],
    aggregate: str,
    temperature: float,
    max_bytes: int,
    prune: bool = True,
) -> SpanSearch:
    """Each span's distance to the spans of the other side.

    Args:
        correct, incorrect: at least one span each, with the same scale nbar.
        distance: from `make_distance`.
        aggregate: one of `config.AGGREGATES`, over the opposing spans; `temperature` is softmin's, in units of nbar.
        max_bytes: bound on the extra memory (the matrices of span pairs come on top, 10 bytes a pair).
        prune: False solves every pair.
    """
    shape = len(correct), len(incorrect)
    best = (torch.full((count,), torch.inf, dtype=torch.float32) for count in shape)
    flags = (torch.zeros(shape, dtype=kind) for kind in (torch.bool, torch.bool, torch.int32))
    found = SpanSearch(*best, torch.full(shape, -torch.inf, dtype=torch.float32), *flags)
    slack = _slack(aggregate, temperature, max(shape)) if prune else math.inf
    for tile in tiles(correct, incorrect, max_bytes):
        _Race(found, tile, distance(tile), slack).run()
    sides = (_aggregate(found, aggregate, temperature, dim).to(correct.tokens.device) for dim in (1, 0))
    return replace(found, **dict(zip(("correct", "incorrect"), sides, strict=True)))


class _Race:
    """The pairs of one tile, against the best distances found so far."""

    def __init__(self, found: SpanSearch, tile: Tile, distance: PairDistance, slack: float):
        self.distance, self.slack, self.tile = distance, slack, tile
        here = tile.rows, tile.columns
        self.lower_bound, self.solved = found.lower_bound[here], found.solved[here]
        self.converged, self.iterations = found.converged[here], found.iterations[here]
        self.best_a, self.best_b = found.correct[tile.rows], found.incorrect[tile.columns]

    def run(self) -> None:
        if self.distance.exact_bounds:
            self.lower_bound.copy_(self.distance.bounds())
            self.solved.fill_(True), self.converged.fill_(True)
            return
        if self.slack < math.inf:
            self._sharpen(self.distance.bounds())
            seeds = torch.cat([_pairs(self.lower_bound.argmin(1)), _pairs(self.lower_bound.argmin(0)).flip(1)])
            unique, where = torch.unique(seeds, dim=0, return_inverse=True)
            solved = self._solve(unique)
            of_rows, of_columns = where.to(solved.f.device).split(self.lower_bound.shape)
            self._sharpen(self.distance.bounds(solved.f[of_rows], solved.g[of_columns]))
        left = torch.nonzero(~self.solved)
        left = left[self.lower_bound[left.unbind(1)].argsort()]
        tokens = int(self.tile.a.sizes.max() + self.tile.b.sizes.max())
        most = max(1, self.tile.max_bytes // (_PAIR_BYTES * tokens))
        size = min(_FIRST_BATCH, most)
        while len(left := left[self.lower_bound[left.unbind(1)] <= self._limits(left)]):
            self._solve(left[:size])
            left, size = left[size:], min(2 * size, most)

    def _sharpen(self, bounds: torch.Tensor) -> None:
        sharper = torch.maximum(self.lower_bound, bounds.to(self.lower_bound.device))
        self.lower_bound.copy_(torch.where(self.solved, self.lower_bound, sharper))

    def _limits(self, pairs: torch.Tensor) -> torch.Tensor:
        """What a pair's distance must not exceed to matter to either of its spans."""
        rows, columns = pairs.unbind(1)
        return torch.maximum(self.best_a[rows], self.best_b[columns]) + self.slack

    def _solve(self, pairs: torch.Tensor) -> SinkhornResult:
        result = self.distance.solve(pairs, self._limits(pairs))
        rows, columns = where = pairs.unbind(1)
        value, dropped = result.value.cpu(), result.dropped.cpu()
        self.lower_bound[where] = torch.where(dropped, torch.maximum(value, self.lower_bound[where]), value)
        self.solved[where] = ~dropped
        self.converged[where] = result.converged.cpu() & ~dropped
        self.iterations[where] = result.iterations.int().cpu()
        candidates = value.masked_fill(dropped, torch.inf)
        self.best_a.scatter_reduce_(0, rows, candidates, "amin")
        self.best_b.scatter_reduce_(0, columns, candidates, "amin")
        return result


def _pairs(partner: torch.Tensor) -> torch.Tensor:
    """(K,) partners -> (K, 2) pairs."""
    return torch.stack([torch.arange(len(partner)), partner], dim=1)


def _slack(aggregate: str, temperature: float, opposing: int) -> float:
    """How far beyond the best distance of a span another one still matters."""
    if aggregate == "min":
        return 0.0
    if aggregate == "softmin":  # L pairs beyond it add less than L exp(-slack / t) to a sum that is at least 1
        return temperature * math.log(opposing / _SOFTMIN_ERROR)
    return math.inf


def _aggregate(found: SpanSearch, aggregate: str, temperature: float, dim: int) -> torch.Tensor:
    """(K,) distances of one side's spans. softmin is `-t log mean exp(-d / t)`."""
    values = found.lower_bound
    if aggregate == "min":
        return values.masked_fill(~found.solved, torch.inf).amin(dim)
    if aggregate == "mean":
        return values.mean(dim)
    if aggregate == "softmin":
        log_mean = torch.logsumexp(-values / temperature, dim=dim) - math.log(values.shape[dim])
        return -temperature * log_mean
    raise ValueError(f"no aggregate is called {aggregate!r}; use min, mean or softmin")
