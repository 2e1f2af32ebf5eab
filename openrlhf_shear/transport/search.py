"""The span search: how far each span is from the spans of the opposing rollouts, without solving every pair.

Pairs race. The most promising pair of each span is solved first, and its potentials bound all other pairs of the span.
Then comes the next pair of each span, and each further turn takes three times as many. A pair continues only while its
lower bound is within the best distance found so far for either of its two spans. A dropped pair is the minimum of
neither span, so the result equals that of solving every pair.

Legend: K_c/K_w spans of the correct/incorrect side, K_a/K_b spans of a tile's sides, P pairs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Protocol, Self

import torch

from openrlhf_shear.config.rule_knobs import AGGREGATES
from openrlhf_shear.transport.geometry import Spans
from openrlhf_shear.transport.sinkhorn import SinkhornResult
from openrlhf_shear.transport.tiles import Tile, search_bytes, tiles

_PAIR_BYTES = 16  # of a solved pair, per token of its spans: potentials, here and in the solver
_SOFTMIN_ERROR = 1e-3  # as a fraction of the temperature, from the pairs that softmin leaves at their lower bound


class PairDistance(Protocol):
    """A symmetric distance on the span pairs of a tile."""

    exact_bounds: bool  # whether `bounds()` are the distances themselves, and no pair needs solving

    def bounds(self, f: torch.Tensor | None = None, g: torch.Tensor | None = None) -> torch.Tensor:
        """(K_a, K_b) float32 lower bounds, sharper with potentials (K_a, n) and (K_b, m), of one solved pair a span."""

    def solve(self, pairs: torch.Tensor, limits: torch.Tensor | None = None) -> SinkhornResult:
        """Solve pairs (P, 2) int64; drop a pair once its distance is known to exceed its limit (P,)."""


@dataclass(frozen=True)
class PairTable:
    """Facts of every pair of spans, (K_c, K_w): 10 bytes a pair; on the CPU after the search."""

    lower_bound: torch.Tensor  # float32: a lower bound of the distance; the distance where `solved`
    solved: torch.Tensor  # bool; the other pairs were dropped
    converged: torch.Tensor  # bool: solved, within the solver's tolerance
    iterations: torch.Tensor  # int32, spent on each pair

    @classmethod
    def empty(cls, shape: tuple[int, int], device: torch.device) -> Self:
        kinds = torch.bool, torch.bool, torch.int32
        flags = (torch.zeros(shape, dtype=kind, device=device) for kind in kinds)
        return cls(torch.full(shape, -torch.inf, dtype=torch.float32, device=device), *flags)

    def __getitem__(self, where: tuple[slice, slice]) -> Self:
        return _each(self, lambda tensor: tensor[where])


@dataclass(frozen=True)
class SideSearch:
    """Facts of each span of a side, (K,); on the CPU after the search."""

    nearest: torch.Tensor  # int64: index of the nearest opposing span
    value: torch.Tensor  # float32: its distance
    total: torch.Tensor  # float64: the sum of the distances d ("mean"), or log sum exp(-d / t) ("softmin")

    @classmethod
    def empty(cls, count: int, aggregate: str, device: torch.device) -> Self:
        nothing = {
            torch.int64: -1,
            torch.float32: torch.inf,
            torch.float64: -torch.inf if aggregate == "softmin" else 0.0,
        }
        return cls(*(torch.full((count,), value, dtype=kind, device=device) for kind, value in nothing.items()))

    def add(self, other: Self, aggregate: str) -> None:
        """Take in the facts of the same spans from further opposing spans; at equal distance the earlier span stays."""
        nearer = other.value < self.value
        self.nearest.copy_(torch.where(nearer, other.nearest, self.nearest))
        self.value.copy_(torch.where(nearer, other.value, self.value))
        self.total.copy_((torch.logaddexp if aggregate == "softmin" else torch.add)(self.total, other.total))

    def distance(self, aggregate: str, temperature: float, opposing: int) -> torch.Tensor:
        """Return the aggregated distances, (K,) float32, over `opposing` spans; softmin: `-t log mean exp(-d / t)`."""
        if aggregate == "min":
            return self.value
        mean = self.total / opposing if aggregate == "mean" else temperature * (math.log(opposing) - self.total)
        return mean.float()


@dataclass(frozen=True)
class SpanSearch:
    """Distances of the spans of two opposing sides, in units of nbar."""

    correct: torch.Tensor  # (K_c,) float32 on the device of the tokens
    incorrect: torch.Tensor  # (K_w,) likewise
    sides: tuple[SideSearch, SideSearch]  # correct, incorrect
    solved_pairs: int  # not dropped; at least 1
    unconverged_pairs: int  # solved pairs that did not reach their tolerance
    table: PairTable | None = None  # with `keep`

    @property
    def solved_fraction(self) -> float:
        """Fraction of all pairs that were solved and not dropped, in (0, 1]."""
        return self.solved_pairs / (len(self.correct) * len(self.incorrect))

    @property
    def unconverged_fraction(self) -> float:
        """Fraction of the solved pairs that did not reach their tolerance, in [0, 1]."""
        return self.unconverged_pairs / self.solved_pairs


def search_spans(
    correct: Spans,
    incorrect: Spans,
    distance: Callable[[Tile], PairDistance],
    aggregate: str,
    temperature: float,
    max_bytes: int,
    prune: bool = True,
    keep: bool = False,
) -> SpanSearch:
    """Return each span's distance to the spans of the other side.

    Args:
        correct, incorrect: at least one span each, with the same scale nbar.
        distance: from `make_distance`.
        aggregate: one of `config.AGGREGATES`, over the opposing spans.
        temperature: of softmin, in units of nbar.
        max_bytes: bound on the extra memory, beside some 30 bytes a span; see `search_bytes`.
        prune: False solves every pair.
        keep: also return the table of all pairs, whose memory does not count towards `max_bytes`.

    Raises ValueError: no aggregate has this name.
    """
    if aggregate not in AGGREGATES:
        raise ValueError(f"no aggregate is called {aggregate!r}; use {', '.join(AGGREGATES)}")
    shape, device = (len(correct), len(incorrect)), correct.tokens.device
    table = PairTable.empty(shape, device) if keep else None
    sides = tuple(SideSearch.empty(count, aggregate, device) for count in shape)
    best = tuple(torch.full((count,), torch.inf, dtype=torch.float32, device=device) for count in shape)
    slack = _slack(aggregate, temperature, max(shape)) if prune else math.inf
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for tile in tiles(correct, incorrect, search_bytes(max_bytes, device)):
        here = tile.rows, tile.columns
        pairs = table[here] if keep else PairTable.empty((len(tile.a), len(tile.b)), device)
        _Race(pairs, (best[0][tile.rows], best[1][tile.columns]), tile, distance(tile), slack).run()
        for side, part, dim, opposing in zip(sides, here, (1, 0), reversed(here), strict=True):
            in_tile = _each(side, lambda tensor, part=part: tensor[part])
            in_tile.add(_seen(pairs, aggregate, temperature, dim, opposing.start), aggregate)
        counts += torch.stack([pairs.solved.sum(), (pairs.solved & ~pairs.converged).sum()])
    sides = tuple(_each(side, torch.Tensor.cpu) for side in sides)
    table = table and _each(table, torch.Tensor.cpu)
    return _finished(sides, *counts.tolist(), table, aggregate, temperature, device)


def joined(parts: Sequence[SpanSearch], aggregate: str, temperature: float, device: torch.device) -> SpanSearch:
    """Join searches of consecutive parts of the correct spans, each against all incorrect spans, into one search."""
    first, *others = [part.sides[1] for part in parts]
    opposing = _each(first, torch.Tensor.clone)
    offsets = accumulate((len(part.correct) for part in parts[:-1]), initial=0)
    opposing.nearest.add_(next(offsets))
    for offset, other in zip(offsets, others, strict=True):
        opposing.add(replace(other, nearest=other.nearest + offset), aggregate)
    rows = SideSearch(
        *(torch.cat([getattr(part.sides[0], each.name) for part in parts]) for each in fields(SideSearch))
    )
    counts = sum(part.solved_pairs for part in parts), sum(part.unconverged_pairs for part in parts)
    return _finished((rows, opposing), *counts, None, aggregate, temperature, device)


def _each(known, change: Callable[[torch.Tensor], torch.Tensor]):
    """Return a `SideSearch` or `PairTable` with each of its tensors changed."""
    return type(known)(*(change(getattr(known, field.name)) for field in fields(known)))


def _finished(sides, solved, unconverged, table, aggregate, temperature, device) -> SpanSearch:
    counts = [len(side.value) for side in sides]
    distances = (
        side.distance(aggregate, temperature, opposing).to(device)
        for side, opposing in zip(sides, reversed(counts), strict=True)
    )
    return SpanSearch(*distances, sides, solved, unconverged, table)


def _seen(pairs: PairTable, aggregate: str, temperature: float, dim: int, offset: int) -> SideSearch:
    """Return what the pairs of a tile tell of one of its sides; `offset` is the index of its first opposing span."""
    value, nearest = pairs.lower_bound.masked_fill(~pairs.solved, torch.inf).min(dim)
    if aggregate == "min":
        return SideSearch(nearest + offset, value, torch.zeros_like(value, dtype=torch.float64))
    bounds = pairs.lower_bound.double()
    total = bounds.sum(dim) if aggregate == "mean" else torch.logsumexp(-bounds / temperature, dim)
    return SideSearch(nearest + offset, value, total)


class _Race:
    """The race of one tile's pairs against the best distances found so far.

    Everything stays on the device of the tokens; only the number of remaining pairs comes back from it.
    """

    def __init__(
        self,
        pairs: PairTable,
        best: tuple[torch.Tensor, torch.Tensor],
        tile: Tile,
        distance: PairDistance,
        slack: float,
    ):
        self.distance, self.slack, self.tile = distance, slack, tile
        self.lower_bound, self.solved = pairs.lower_bound, pairs.solved
        self.converged, self.iterations = pairs.converged, pairs.iterations
        self.best_a, self.best_b = best

    def run(self) -> None:
        if self.distance.exact_bounds:
            self.lower_bound.copy_(self.distance.bounds())
            self.solved.fill_(True), self.converged.fill_(True)
            return
        if self.slack < math.inf:
            self._sharpen(self.distance.bounds())
            seeds = torch.cat([_pairs(self.lower_bound.argmin(1)), _pairs(self.lower_bound.argmin(0)).flip(1)])
            columns = self.lower_bound.shape[1]
            unique, where = torch.unique(seeds[:, 0] * columns + seeds[:, 1], return_inverse=True)
            solved = self._solve(torch.stack([unique // columns, unique % columns], 1))
            of_rows, of_columns = where.split(self.lower_bound.shape)
            self._sharpen(self.distance.bounds(solved.f[of_rows], solved.g[of_columns]))
        limits = torch.maximum(self.best_a[:, None], self.best_b) + self.slack
        left = torch.nonzero(~self.solved & (self.lower_bound <= limits))
        left = left[self.lower_bound[left.unbind(1)].argsort(stable=True)]
        ranks = torch.stack([_ranks(spans) for spans in left.unbind(1)], 1)
        tokens = int(self.tile.a.sizes.max() + self.tile.b.sizes.max())
        most = max(1, self.tile.max_bytes // (_PAIR_BYTES * tokens))
        turn = 1
        while len(left):
            matters = self.lower_bound[left.unbind(1)][:, None] <= self._limits(left)
            now = (matters & (ranks < turn)).any(1)
            later = matters.any(1) & ~now
            order = torch.where(now, 0, torch.where(later, 1, 2)).argsort(stable=True)
            solved, kept = torch.stack([now.sum(), later.sum()]).tolist()
            for which in order[:solved].split(most) if solved else ():
                self._solve(left[which])
            kept = order[solved : solved + kept]
            left, ranks, turn = left[kept], ranks[kept], 3 * turn

    def _sharpen(self, bounds: torch.Tensor) -> None:
        sharper = torch.maximum(self.lower_bound, bounds)
        self.lower_bound.copy_(torch.where(self.solved, self.lower_bound, sharper))

    def _limits(self, pairs: torch.Tensor) -> torch.Tensor:
        """Return up to which distance each pair still matters to its row span and to its column span, (P, 2)."""
        rows, columns = pairs.unbind(1)
        return torch.stack([self.best_a[rows], self.best_b[columns]], 1) + self.slack

    def _solve(self, pairs: torch.Tensor) -> SinkhornResult:
        result = self.distance.solve(pairs, self._limits(pairs).amax(1))
        rows, columns = where = pairs.unbind(1)
        value, dropped = result.value, result.dropped
        self.lower_bound[where] = torch.where(dropped, torch.maximum(value, self.lower_bound[where]), value)
        self.solved[where] = ~dropped
        self.converged[where] = result.converged & ~dropped
        self.iterations[where] = result.iterations.int()
        candidates = value.masked_fill(dropped, torch.inf)
        self.best_a.scatter_reduce_(0, rows, candidates, "amin")
        self.best_b.scatter_reduce_(0, columns, candidates, "amin")
        return result


def _pairs(partner: torch.Tensor) -> torch.Tensor:
    """Pair each span with its partner: (K,) -> (K, 2)."""
    return torch.stack([torch.arange(len(partner), device=partner.device), partner], dim=1)


def _ranks(spans: torch.Tensor) -> torch.Tensor:
    """Return each pair's rank among the pairs of its span, in the order given: (P,) int64, from 0."""
    order = spans.argsort(stable=True)
    grouped = spans[order]
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order), device=order.device) - torch.searchsorted(grouped, grouped)
    return ranks


def _slack(aggregate: str, temperature: float, opposing: int) -> float:
    """Return how far beyond a span's best distance another distance still matters."""
    if aggregate == "min":
        return 0.0
    if aggregate == "softmin":  # L pairs beyond the slack add less than L exp(-slack / t) to a sum of at least 1
        return temperature * math.log(opposing / _SOFTMIN_ERROR)
    return math.inf
