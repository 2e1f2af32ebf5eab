"""Token costs of runs of spans, in bounded memory. Legend: T tokens, K spans, P pairs, n/m tokens of a span."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch

from openrlhf_shear.config.spec import SEARCH_BYTES
from openrlhf_shear.transport.geometry import Spans, token_costs

logger = logging.getLogger(__name__)

# Bytes of a tile. The last two matter at small strides (`tests/unit/transport/test_memory.py`).
_COST_BYTES = 8  # per entry: the cost, and the kernel that a solver makes from it
_BOUND_BYTES = 8  # per token of a side and span of the other: logarithms of sums over spans
_TABLE_BYTES = 90  # per pair of spans: its row of the table, its bounds in float64, and its place in the race
_LEAST_BYTES = 2**26  # of a search on CUDA, even if less is free
_SOLVE_BYTES = 36  # of the batched solvers, per entry of a block: the block, kernels and temporaries
_CPU_TILE_TOKENS = 4096  # of a side: larger tiles take fresh memory pages, and smaller ones more first pairs
_CPU_CHUNK_BYTES = 2**24  # on a CPU, batches larger than the cache are slower


@dataclass(frozen=True)
class CostBlocks:
    """Batch of transport problems with uniform masses."""

    cost: torch.Tensor  # (P, n, m) float32, in units of nbar; infinite where either token is padding
    rows: torch.Tensor  # (P, n) bool: True at a token, False at padding; at least one token per problem
    columns: torch.Tensor  # (P, m) bool, likewise

    def masses(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the uniform masses (P, n) and (P, m), 0 at padding."""
        return tuple(real / real.sum(1, keepdim=True, dtype=self.cost.dtype) for real in (self.rows, self.columns))


@dataclass(frozen=True)
class Tile:
    """A run of spans of each side, with no tokens but theirs, and the token costs between the two."""

    a: Spans
    b: Spans
    rows: slice  # where the spans `a` lie within their whole side
    columns: slice  # likewise, of `b`
    max_bytes: int  # memory that a solver may take beside `cost`

    @cached_property
    def cost(self) -> torch.Tensor:
        """Costs (T_a, T_b) float32, in units of nbar, computed at the first use."""
        return token_costs(self.a.tokens, self.b.tokens, self.a.scale, workspace_bytes=self.max_bytes // 2)

    @property
    def device(self) -> torch.device:
        return self.a.tokens.device

    def all_pairs(self) -> torch.Tensor:
        """Return all pairs, (K_a * K_b, 2) int64 on the device of the tokens, in row-major order."""
        return torch.cartesian_prod(*(torch.arange(len(side), device=self.device) for side in (self.a, self.b)))

    def batches(self, pairs: torch.Tensor) -> Iterator[tuple[slice, CostBlocks]]:
        """Yield the blocks of `pairs` (P, 2) int64, in order, in batches that fit into `max_bytes`.

        The slice before each batch says which of the pairs it holds.
        """
        n, m = int(self.a.sizes.max()), int(self.b.sizes.max())
        budget = self.max_bytes if self.device.type != "cpu" else min(self.max_bytes, _CPU_CHUNK_BYTES)
        most = max(1, budget // (_SOLVE_BYTES * n * m))
        ragged = self.a.sizes.min() < n or self.b.sizes.min() < m
        for first in range(0, len(pairs), most):
            part = pairs[first : first + most]
            rows, row_real = self.a.positions(part[:, 0])
            columns, column_real = self.b.positions(part[:, 1])
            blocks = self.cost[rows[:, :, None], columns[:, None, :]]
            if ragged:
                blocks.masked_fill_(~(row_real[:, :, None] & column_real[:, None, :]), float("inf"))
            yield slice(first, first + len(part)), CostBlocks(blocks, row_real, column_real)

    def dual_bounds(
        self, potentials: torch.Tensor | None, conjugate: Callable[..., torch.Tensor], transposed: bool = False
    ) -> torch.Tensor:
        """Return `<a, f> + conjugate(f, block, others)` of every span: (K_a, K_b) float32, (K_b, K_a) if `transposed`.

        Args:
            potentials: (K, n), any value at padding; None for 0.
            conjugate: returns `<b, g>`, (K_others,) float64, of the best g for f (n,), given the costs (n, T_others)
                of f's span.
            transposed: the spans are those of the columns.
        """
        cost, spans, others = (self.cost.T, self.b, self.a) if transposed else (self.cost, self.a, self.b)
        bounds = []
        for k, block in enumerate(spans.blocks(cost)):
            f = cost.new_zeros(len(block)) if potentials is None else potentials[k, : len(block)]
            bounds.append(f.double().mean() + conjugate(f, block, others))
        return torch.stack(bounds).float()


@cache
def search_bytes(limit: int, device: torch.device) -> int:
    """Return the memory, in bytes, that a search may take beside the hidden states.

    `limit` is `SearchConfig.max_cost_bytes`; where it is 0, the free memory of the device decides. The choice is made
    once in a process, so that all steps run alike.
    """
    if limit or device.type != "cuda":
        return limit or SEARCH_BYTES
    free = free_bytes(device)
    chosen = max(_LEAST_BYTES, 2 ** int(math.log2(max(free, 1) / 4)))
    logger.info("span search: up to %.3g GiB of the %.3g GiB that are free on %s", chosen / 2**30, free / 2**30, device)
    return chosen


def free_bytes(device: torch.device) -> int:
    """Return the bytes that are free on a CUDA device, with those that torch has reserved and does not use."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


def tiles(a: Spans, b: Spans, max_bytes: int) -> Iterator[Tile]:
    """Yield tiles that together hold every pair of spans, each in `max_bytes` of extra memory (at least one block)."""
    most = int((max_bytes / 2 / _entry_bytes(a, b)) ** 0.5)
    if a.tokens.device.type == "cpu":
        most = min(most, _CPU_TILE_TOKENS)
    for rows in _runs(a, most):
        for columns in _runs(b, most):
            yield Tile(a.part(rows), b.part(columns), rows, columns, max_bytes // 4)


def batches(groups: Sequence[tuple[Spans, Spans]], max_bytes: int, together: bool) -> Iterator[list[tuple[int, Tile]]]:
    """Yield the tiles of all groups (a, b), each with its group's index: tile by tile, or `together` where they fit.

    A group of several tiles comes tile by tile.
    """
    waiting, taken = [], 0.0
    for index, (a, b) in enumerate(groups):
        of_group = [(index, tile) for tile in tiles(a, b, max_bytes)]
        if not together or len(of_group) > 1:
            yield from ([each] for each in of_group)
            continue
        size = len(a.tokens) * len(b.tokens) * _entry_bytes(a, b)
        if waiting and taken + size > max_bytes / 2:
            yield waiting
            waiting, taken = [], 0.0
        waiting, taken = waiting + of_group, taken + size
    if waiting:
        yield waiting


def _entry_bytes(a: Spans, b: Spans) -> float:
    """Return the bytes that a tile takes for each of its costs."""
    dense = [len(spans) / len(spans.tokens) for spans in (a, b)]  # spans a token
    return _COST_BYTES + _BOUND_BYTES * max(dense) + _TABLE_BYTES * dense[0] * dense[1]


def _runs(spans: Spans, most: int) -> Iterator[slice]:
    """Yield runs of neighbouring spans of at most `most` tokens, or of a single span."""
    ends = (spans.starts + spans.sizes).tolist()
    count = -(-ends[-1] // most)
    most = min(most, -(-ends[-1] // count) + int(spans.sizes.max()))  # so that runs have about the same length
    begin, first = int(spans.starts[0]), 0
    for k in range(1, len(spans)):
        if ends[k] - begin > most:
            yield slice(first, k)
            begin, first = int(spans.starts[k]), k
    yield slice(first, len(spans))
