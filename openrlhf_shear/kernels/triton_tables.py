"""Table of a side's spans that the Triton kernels read: where each span lies among the costs of several tiles.

The costs (T_a, T_b) of all tiles lie one after the other, row-major. The pairs of spans do too. A table is int64, a row
a fact and a column a span.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

# The facts, by the row of the table. "Others" are the spans of the other side of the same tile.
START = tl.constexpr(0)  # the span's first token, within its side of the tile
SIZE = tl.constexpr(1)  # its tokens
CORNER = tl.constexpr(2)  # index of the cost between its first token and the other side's first token
WIDTH = tl.constexpr(3)  # T_b: the step from a row of costs to the next
ACROSS = tl.constexpr(4)  # tokens of the other side
ACROSS_AT = tl.constexpr(5)  # where the span begins in a list with a number for each token of the other side
FIRST = tl.constexpr(6)  # the first of the others, counted over all tiles
OTHERS = tl.constexpr(7)  # how many others there are
PAIR = tl.constexpr(8)  # index of the span's pair with the first of the others
STEP = tl.constexpr(9)  # from that pair to the pair with the next of the others


@triton.jit
def load_fact(table, count, fact: tl.constexpr, span):
    """Return a fact of span `span`, int64, from a table of `count` spans."""
    return tl.load(table + fact * count.to(tl.int64) + span)


def side_table(
    sides: Sequence[tuple[torch.Tensor, torch.Tensor]],
    other_counts: Sequence[int],
    shapes: Sequence[tuple[int, int]],
    columns: bool,
) -> torch.Tensor:
    """Return the table (10, K) of a side's spans, on the CPU.

    Args:
        sides: of each tile the spans' starts and sizes, (K_t,) int64.
        other_counts: of each tile the number of spans of the other side.
        shapes: of each tile (T_a, T_b).
        columns: the spans are those of the columns.
    """
    tables, cost, pair, first, across_at = [], 0, 0, 0, 0
    for (starts, sizes), others, (height, width) in zip(sides, other_counts, shapes, strict=True):
        count, k = len(starts), torch.arange(len(starts))
        across = height if columns else width
        facts = [
            starts,
            sizes,
            cost + (starts if columns else starts * width),
            torch.full((count,), width),
            torch.full((count,), across),
            across_at + k * across,
            torch.full((count,), first),
            torch.full((count,), others),
            pair + (k if columns else k * others),
            torch.full((count,), count if columns else 1),
        ]
        tables.append(torch.stack(facts))
        cost, pair, first = cost + height * width, pair + count * others, first + others
        across_at += count * across
    return torch.cat(tables, 1)
