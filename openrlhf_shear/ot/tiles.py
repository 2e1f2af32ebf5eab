"""Token cost matrices of runs of spans, in bounded memory. Legend: T tokens, K spans, P pairs, n/m tokens of a span."""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import torch

from openrlhf_shear.config.spec import SEARCH_BYTES
from openrlhf_shear.ot.geometry import Spans, token_costs

logger = logging.getLogger(__name__)

_COST_BYTES = 8  # of a tile, per entry: the costs, and the kernel a solver makes of them
_LEAST_BYTES = 2**26  # of one on CUDA, however little is free
_SOLVE_BYTES = 36  # of the batched solvers, per entry of a block: the block, kernels and temporaries
_CPU_TILE_BYTES = 2**27  # larger tiles are made of fresh pages each time, which costs more than they save
_CPU_CHUNK_BYTES = 2**24  # on a CPU, batches beyond the cache are slower


@dataclass(frozen=True)
class CostBlocks:
    """A batch of transport problems with uniform masses."""

    cost: torch.Tensor  # (P, n, m) float32, in units of nbar; infinite where either token is padding
    rows: torch.Tensor  # (P, n) bool, the tokens that are there; at least one a problem
    columns: torch.Tensor  # (P, m) bool, likewise

    def masses(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The uniform masses (P, n) and (P, m), 0 at padding."""
        return tuple(there / there.sum(1, keepdim=True, dtype=self.cost.dtype) for there in (self.rows, self.columns))


@dataclass(frozen=True)
class Tile:
    """A run of spans of one side and a run of the other, over no more than their own tokens, and the token costs."""

    a: Spans
    b: Spans
    rows: slice  # which spans of the whole sides they are
    columns: slice
    max_bytes: int  # what solving it may take beside `cost`

    @cached_property
    def cost(self) -> torch.Tensor:
        """(T_a, T_b) float32, in units of nbar, made when it is first asked for."""
        return token_costs(self.a.tokens, self.b.tokens, self.a.scale, workspace_bytes=self.max_bytes // 2)

    @property
    def device(self) -> torch.device:
        return self.a.tokens.device

    def all_pairs(self) -> torch.Tensor:
        """(K_a * K_b, 2) int64 on the device of the tokens, row-major."""
        return torch.cartesian_prod(*(torch.arange(len(side), device=self.device) for side in (self.a, self.b)))

    def batches(self, pairs: torch.Tensor) -> Iterator[tuple[slice, CostBlocks]]:
        """The blocks of `pairs` (P, 2), int64, in order and in batches that fit into `max_bytes`, with which of the
        pairs they are.
        """
        n, m = int(self.a.sizes.max()), int(self.b.sizes.max())
        budget = self.max_bytes if self.device.type != "cpu" else min(self.max_bytes, _CPU_CHUNK_BYTES)
        most = max(1, budget // (_SOLVE_BYTES * n * m))
        ragged = self.a.sizes.min() < n or self.b.sizes.min() < m
        for first in range(0, len(pairs), most):
            part = pairs[first : first + most]
            rows, row_there = _positions(self.a, part[:, 0], n)
            columns, column_there = _positions(self.b, part[:, 1], m)
            blocks = self.cost[rows[:, :, None], columns[:, None, :]]
            if ragged:
                blocks.masked_fill_(~(row_there[:, :, None] & column_there[:, None, :]), float("inf"))
            yield slice(first, first + len(part)), CostBlocks(blocks, row_there, column_there)

    def dual_bounds(
        self, potentials: torch.Tensor | None, conjugate: Callable[..., torch.Tensor], transposed: bool = False
    ) -> torch.Tensor:
        """`<a, f> + conjugate(f, block, others)` of every span: (K_a, K_b) float32, from the columns (K_b, K_a).

        Args:
            potentials: (K, n), anything at padding; None for 0.
            conjugate: `<b, g>` (K_others,) float64 of the best g for f (n,), from the costs (n, T_others) of its span.
        """
        cost, spans, others = (self.cost.T, self.b, self.a) if transposed else (self.cost, self.a, self.b)
        bounds = []
        for k, block in enumerate(spans.blocks(cost)):
            f = cost.new_zeros(len(block)) if potentials is None else potentials[k, : len(block)]
            bounds.append(f.double().mean() + conjugate(f, block, others))
        return torch.stack(bounds).float()


@cache
def search_bytes(asked: int, device: torch.device) -> int:
    """The memory that a search may take beside the hidden states: `SearchConfig.max_cost_bytes`, or where that is 0
    what the device has. It is chosen once a process, so that every step runs as the first did.
    """
    if asked or device.type != "cuda":
        return asked or SEARCH_BYTES
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + cached
    chosen = max(_LEAST_BYTES, 2 ** int(math.log2(max(free, 1) / 4)))
    logger.info("span search: up to %.3g GiB of the %.3g GiB that are free on %s", chosen / 2**30, free / 2**30, device)
    return chosen


def tiles(a: Spans, b: Spans, max_bytes: int) -> Iterator[Tile]:
    """The tiles that hold every pair of spans, one at a time, in `max_bytes` of extra memory or one block at least."""
    for rows in _runs(a, max_bytes):
        for columns in _runs(b, max_bytes):
            yield Tile(a.part(rows), b.part(columns), rows, columns, max_bytes // 4)


def _runs(spans: Spans, max_bytes: int) -> Iterator[slice]:
    """Runs of neighbouring spans, each over few enough tokens for a tile of costs to take half of `max_bytes`."""
    if spans.tokens.device.type == "cpu":
        max_bytes = min(max_bytes, _CPU_TILE_BYTES)
    most = int((max_bytes / 2 / _COST_BYTES) ** 0.5)
    ends = (spans.starts + spans.sizes).tolist()
    count = -(-ends[-1] // most)
    most = min(most, -(-ends[-1] // count) + int(spans.sizes.max()))  # of about the same length
    begin, first = int(spans.starts[0]), 0
    for k in range(1, len(spans)):
        if ends[k] - begin > most:
            yield slice(first, k)
            begin, first = int(spans.starts[k]), k
    yield slice(first, len(spans))


def _positions(spans: Spans, which: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token rows (P, width) of the spans `which`, and which of them are there; the others point at the last one."""
    starts, sizes = (each.to(which.device)[which, None] for each in (spans.starts, spans.sizes))
    offsets = torch.arange(width, device=which.device)
    return starts + torch.minimum(offsets, sizes - 1), offsets < sizes
