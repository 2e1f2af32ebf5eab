"""The span search: how far each span is from the spans of the opposing rollouts, without solving every pair.

Pairs race. The most promising pair of each span is solved first, and its potentials bound all other pairs of the span.
Then comes the next pair of each span, and each further turn takes three times as many. A pair continues only while its
lower bound is within the best distance found so far for either of its two spans. A dropped pair is the minimum of
neither span, so the result equals that of solving every pair.

Legend: K_c/K_w spans of the correct/incorrect side, P pairs.
Next: `transport.sinkhorn`, the distance of two spans; `transport.race` orders the pairs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import NamedTuple

import torch

from openrlhf_shear.transport.copies import to_device
from openrlhf_shear.transport.geometry import Spans
from openrlhf_shear.transport.race import PairDistance, Race, least, none_yet
from openrlhf_shear.transport.tiles import Tile, batches, search_bytes

CPU = torch.device("cpu")


@dataclass(frozen=True)
class PairTable:
    """Facts of every pair of spans, (K_c, K_w), on the CPU."""

    lower_bound: torch.Tensor  # float32: a lower bound of the distance; the distance where `solved`
    solved: torch.Tensor  # bool; the other pairs were dropped
    converged: torch.Tensor  # bool: solved, within the solver's tolerance
    iterations: torch.Tensor  # int32, spent on each pair


@dataclass(frozen=True)
class SideSearch:
    """Facts of each span of a side, (K,), on the CPU."""

    nearest: torch.Tensor  # int64: index of the nearest opposing span
    value: torch.Tensor  # float32: its distance


@dataclass(frozen=True)
class SpanSearch:
    """Distances of the spans of two opposing sides, in units of nbar, on the CPU."""

    sides: tuple[SideSearch, SideSearch]  # correct, incorrect
    solved_pairs: int  # not dropped; at least 1
    unconverged_pairs: int  # solved pairs that did not reach their tolerance
    table: PairTable | None = None  # with `keep`

    @property
    def correct(self) -> torch.Tensor:
        """Distances of the correct spans, (K_c,) float32."""
        return self.sides[0].value

    @property
    def incorrect(self) -> torch.Tensor:
        """Distances of the incorrect spans, (K_w,) float32."""
        return self.sides[1].value

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
    max_bytes: int,
    prune: bool = True,
    keep: bool = False,
) -> SpanSearch:
    """Return each span's distance to the spans of the other side.

    Args:
        correct, incorrect: at least one span each, with the same scale nbar.
        distance: from `make_distance`.
        max_bytes: bound on the extra memory, beside some 30 bytes a span; see `search_bytes`.
        prune: False solves every pair.
        keep: also return the table of all pairs, whose memory does not count towards `max_bytes`.
    """
    return search_groups([(correct, incorrect)], distance, None, max_bytes, prune, keep)[0]


def search_groups(
    groups: Sequence[tuple[Spans, Spans]],
    distance: Callable[[Tile], PairDistance],
    together: Callable[[Sequence[Tile]], PairDistance] | None,
    max_bytes: int,
    prune: bool = True,
    keep: bool = False,
) -> list[SpanSearch]:
    """Return the search of each group (correct, incorrect); all are on one device.

    Args, beside those of `search_spans`:
        together: the distance of several tiles, from `make_together`. With it, groups that fit into memory race at the
            same time; with None, one after the other. No group's result depends on another group.
    """
    device = groups[0][0].tokens.device
    found = [_Found(len(a), len(b), keep) for a, b in groups]
    best = {}
    for batch in batches(groups, search_bytes(max_bytes, device), together is not None):
        tiles = [tile for _, tile in batch]
        if len(batch) == 1:
            ((index, tile),) = batch
            shape = [len(side) for side in groups[index]]
            of_group = best.setdefault(index, [none_yet(k, device) for k in shape])
            race = Race(tiles, distance(tile), prune, (of_group[0][tile.rows], of_group[1][tile.columns]))
        else:
            race = Race(tiles, together(tiles), prune)
        race.run()
        for (index, tile), seen in zip(batch, _seen(race), strict=True):
            found[index].add(tile, seen)
            if keep:
                found[index].keep(tile, race)
    return [each.finished() for each in found]


class _Seen(NamedTuple):
    """What the pairs of a tile tell of its spans, on the CPU; `nearest` counts within the tile."""

    sides: tuple[SideSearch, SideSearch]
    solved: int
    unconverged: int


class _Found:
    """Facts of a group's spans, gathered tile by tile."""

    def __init__(self, correct: int, incorrect: int, keep: bool):
        self._sides = tuple(SideSearch(torch.full((k,), -1), none_yet(k, CPU)) for k in (correct, incorrect))
        self._counts = [0, 0]  # solved, unconverged
        kinds = (torch.float32, torch.bool, torch.bool, torch.int32) if keep else ()
        self._table = PairTable(*(torch.zeros(correct, incorrect, dtype=kind) for kind in kinds)) if keep else None

    def add(self, tile: Tile, seen: _Seen) -> None:
        """Take in what the pairs of a tile tell; at equal distance the earlier span stays."""
        here = tile.rows, tile.columns
        for side, part, opposing, new in zip(self._sides, here, reversed(here), seen.sides, strict=True):
            nearer = new.value < side.value[part]
            side.nearest[part] = torch.where(nearer, new.nearest + opposing.start, side.nearest[part])
            side.value[part] = torch.where(nearer, new.value, side.value[part])
        self._counts[0] += seen.solved
        self._counts[1] += seen.unconverged

    def keep(self, tile: Tile, race: Race) -> None:
        for field in fields(PairTable):
            values = getattr(race, field.name).view(len(tile.a), len(tile.b))
            getattr(self._table, field.name)[tile.rows, tile.columns] = values.cpu()

    def finished(self) -> SpanSearch:
        return SpanSearch(self._sides, *self._counts, self._table)


def _seen(race: Race) -> list[_Seen]:
    """Return what a race has found out about each of its tiles, after a single wait for the device."""
    value = torch.where(race.solved, race.lower_bound, torch.inf)
    (value_a, pair_a), (value_b, pair_b) = (
        least(value, spans, len(best)) for spans, best in ((race.rows, race.best_a), (race.columns, race.best_b))
    )
    counts = torch.stack([race.solved, race.solved & ~race.converged]).cumsum(1)
    ends = torch.tensor([len(tile.a) * len(tile.b) for tile in race.tiles]).cumsum(0) - 1
    counts = counts.index_select(1, to_device(ends, counts.device)).flatten()
    parts = [value_a, race.columns[pair_a], value_b, race.rows[pair_b], counts]
    numbers = torch.cat([part.double() for part in parts]).cpu().split([len(part) for part in parts])
    spans_a, spans_b = [len(tile.a) for tile in race.tiles], [len(tile.b) for tile in race.tiles]
    firsts = zip(accumulate(spans_a, initial=0), accumulate(spans_b, initial=0), strict=True)
    counts = numbers[4].long().view(2, -1).diff(prepend=torch.zeros(2, 1, dtype=torch.int64), dim=1).T.tolist()
    of_a = zip(*(each.split(spans_a) for each in numbers[:2]), strict=True)
    of_b = zip(*(each.split(spans_b) for each in numbers[2:4]), strict=True)
    return [
        _Seen((_side(*a, first_b), _side(*b, first_a)), *count)
        for a, b, count, (first_a, first_b) in zip(of_a, of_b, counts, firsts, strict=False)
    ]


def _side(value: torch.Tensor, nearest: torch.Tensor, first: int) -> SideSearch:
    return SideSearch(nearest.long() - first, value.float())
