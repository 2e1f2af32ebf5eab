"""Cost blocks of span pairs, cut out of token cost matrices within a bounded memory.

Spans overlap, so the cost block of a span pair is a block of a token cost matrix that serves many pairs. The pairs of
two sides are walked in rectangular tiles (one token cost matrix each), and each tile in chunks (one batch each).

Legend: P pairs of a chunk, n/m tokens of the longest span on either side of the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from openrlhf_shear.ot.geometry import Spans, token_costs

_COST_BYTES = 24  # of a token cost matrix while it is made, per entry
_SOLVE_BYTES = 36  # of the batched solvers, per entry of a block: the block, kernels and temporaries
_CPU_CHUNK_BYTES = 2**24  # on a CPU, batches beyond the cache are slower


@dataclass(frozen=True)
class CostBlocks:
    """A batch of transport problems with uniform masses.

    Attributes:
        cost: (P, n, m) float32, in units of nbar; infinite where either token is padding.
        rows: (P, n) bool, the tokens that are there; at least one a problem.
        columns: (P, m) bool, likewise.
    """

    cost: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor

    def masses(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The uniform masses (P, n) and (P, m), 0 at padding."""
        return tuple(there / there.sum(1, keepdim=True, dtype=self.cost.dtype) for there in (self.rows, self.columns))


def map_span_pairs(
    solve: Callable[[CostBlocks], tuple[torch.Tensor, torch.Tensor]], a: Spans, b: Spans, max_bytes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`solve` on the cost block of every pair of a span of `a` and a span of `b`.

    Args:
        solve: gives the (P,) values and (P,) bool flags of P blocks.
        max_bytes: bound on the extra memory; one block at least is always held.

    Returns:
        (K_a, K_b) values, in the dtype `solve` gives, and (K_a, K_b) bool flags.
    """
    values, flags = [], []
    for rows in _runs(a, max_bytes):
        row_values, row_flags = [], []
        for columns in _runs(b, max_bytes):
            parts = [solve(blocks) for blocks in _tile_blocks(rows, columns, max_bytes)]
            shape = len(rows), len(columns)
            row_values.append(torch.cat([value for value, _ in parts]).view(shape))
            row_flags.append(torch.cat([flag for _, flag in parts]).view(shape))
        values.append(torch.cat(row_values, dim=1))
        flags.append(torch.cat(row_flags, dim=1))
    return torch.cat(values), torch.cat(flags)


def map_spans(solve: Callable[[CostBlocks], tuple[torch.Tensor, torch.Tensor]], a: Spans, max_bytes: int):
    """`solve` on the cost block of every span of `a` with itself: (K_a,) values."""
    parts = [
        map_span_pairs(solve, one, one, max_bytes)[0].view(1) for one in (_part(a, k, k + 1) for k in range(len(a)))
    ]
    return torch.cat(parts)


def _part(spans: Spans, first: int, last: int) -> Spans:
    """The spans `[first, last)`, over no more than their own tokens."""
    starts, sizes = spans.starts[first:last], spans.sizes[first:last]
    begin, end = int(starts[0]), int((starts + sizes).max())
    return Spans(spans.tokens[begin:end], starts - begin, sizes, spans.scale)


def _runs(spans: Spans, max_bytes: int) -> Iterator[Spans]:
    """Runs of neighbouring spans, each over few enough tokens for a tile of costs to take half of `max_bytes`."""
    most = int((max_bytes / 2 / _COST_BYTES) ** 0.5)
    ends = (spans.starts + spans.sizes).tolist()
    begin, first = int(spans.starts[0]), 0
    for k in range(1, len(spans)):
        if ends[k] - begin > most:
            yield _part(spans, first, k)
            begin, first = int(spans.starts[k]), k
    yield _part(spans, first, len(spans))


def _tile_blocks(a: Spans, b: Spans, max_bytes: int) -> Iterator[CostBlocks]:
    """The blocks of all pairs of spans of `a` and `b` (row-major), in chunks that take a quarter of `max_bytes`."""
    device = a.tokens.device
    cost = token_costs(a.tokens, b.tokens, a.scale, workspace_bytes=max_bytes // 8)
    n, m = int(a.sizes.max()), int(b.sizes.max())
    budget = max_bytes // 4 if device.type != "cpu" else min(max_bytes // 4, _CPU_CHUNK_BYTES)
    pairs = torch.cartesian_prod(torch.arange(len(a)), torch.arange(len(b)))
    for chunk in pairs.split(max(1, budget // (_SOLVE_BYTES * n * m))):
        rows, row_there = _positions(a, chunk[:, 0], n, device)
        columns, column_there = _positions(b, chunk[:, 1], m, device)
        blocks = cost[rows[:, :, None], columns[:, None, :]]
        if a.sizes[chunk[:, 0]].min() < n or b.sizes[chunk[:, 1]].min() < m:
            blocks.masked_fill_(~(row_there[:, :, None] & column_there[:, None, :]), float("inf"))
        yield CostBlocks(blocks, row_there, column_there)


def _positions(spans: Spans, which: torch.Tensor, width: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token rows (P, width) of the spans `which`, and which of them are there; the others point at the last one."""
    offsets = torch.arange(width)
    there = offsets < spans.sizes[which, None]
    rows = spans.starts[which, None] + torch.minimum(offsets, spans.sizes[which, None] - 1)
    return rows.to(device, non_blocking=True), there.to(device, non_blocking=True)
