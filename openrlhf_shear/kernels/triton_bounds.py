"""Triton kernels of `triton_sinkhorn` for all pairs of several tiles: costs, and bounds.

The plain reference of costs is `transport.geometry.token_costs`. Bounds are from potentials, and after one exact
iteration. In a list of `span_log_sums`, span k has a number for each token of the other side. Rows and columns change
places with TRANSPOSED, which is said at compile time, as costs of a row are neighbours in memory.

Kernels read a table of a side's spans: where each span lies among the costs. The costs (T_a, T_b) of all tiles lie one
after the other, row-major. The pairs of spans do too. A table is int64, a row a fact and a column a span.

Legend: T_a/T_b tokens of a tile, K/L row/column spans, P pairs, m tokens of the longest column span. Q/R are the parts
between the edges of row/column spans.
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


_TINY = tl.constexpr(1.2e-38)  # the smallest float32 that is not denormal


@triton.jit(do_not_specialize=["count", "width"])
def span_log_sums(
    cost, table, count, potentials, width, epsilon, out,
    TRANSPOSED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_ACROSS: tl.constexpr,
):  # fmt: skip
    """Fill `out` with `log sum_i exp((f_ki - C_ij) / eps)` over the tokens i of span k, for tokens j of the other side.

    `potentials` (K, width) holds f.
    """
    k = tl.program_id(0).to(tl.int64)
    across = load_fact(table, count, ACROSS, k)
    if tl.program_id(1) * BLOCK_ACROSS < across:
        i, j = tl.arange(0, BLOCK_N), tl.program_id(1) * BLOCK_ACROSS + tl.arange(0, BLOCK_ACROSS)
        own, there = i < load_fact(table, count, SIZE, k), j < across
        step, corner = load_fact(table, count, WIDTH, k), cost + load_fact(table, count, CORNER, k)
        if TRANSPOSED:
            block = corner + i[:, None] + j[None, :].to(tl.int64) * step
        else:
            block = corner + i[:, None].to(tl.int64) * step + j[None, :]
        c = tl.load(block, mask=own[:, None] & there[None, :], other=0.0)
        f = tl.load(potentials + k * width + i, mask=own, other=0.0)
        exponents = tl.where(own[:, None], (f[:, None] - c) / epsilon, float("-inf"))
        largest = tl.max(exponents, 0)
        logs = largest + tl.log(tl.sum(tl.exp(exponents - largest[None, :]), 0))
        tl.store(out + load_fact(table, count, ACROSS_AT, k) + j, logs, mask=there)


@triton.jit(do_not_specialize=["count", "other_count"])
def pair_bounds(table, count, others, other_count, logs, means, epsilon, out, BLOCK_M: tl.constexpr):
    """Fill `out` (P,) with `means[k] - eps * mean of span k's numbers in logs`, over the tokens of the other span.

    Program (k, o) takes the pair of span k with its o-th other span. `means` (K,) is float64.
    """
    k, o = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    if o < load_fact(table, count, OTHERS, k):
        span = load_fact(table, count, FIRST, k) + o
        size, j = load_fact(others, other_count, SIZE, span), tl.arange(0, BLOCK_M)
        numbers = logs + load_fact(table, count, ACROSS_AT, k) + load_fact(others, other_count, START, span)
        total = tl.sum(tl.load(numbers + j, mask=j < size, other=0.0).to(tl.float64), 0)
        value = tl.load(means + k) - (total / size.to(tl.float64)) * epsilon
        pair = load_fact(table, count, PAIR, k) + o * load_fact(table, count, STEP, k)
        tl.store(out + pair, value.to(tl.float32))


@triton.jit(do_not_specialize=["part_count", "begin", "column_count", "most", "width"])
def part_sums(
    cost, parts, part_count, begin, columns, column_count, logs, epsilon, out, most, width,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Fill `out` (Q, most, m) with the sums over each part's rows i of `K_ij / R_il`, 0 beyond a span's columns.

    Program (q, o) takes the rows of part `begin + q` and the columns of its o-th other span l; `logs` holds `log R_il`
    of span l at token i. `parts` is a table as of row spans.
    """
    q, o = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    part = begin + q
    if o < load_fact(parts, part_count, OTHERS, part):
        span = load_fact(parts, part_count, FIRST, part) + o
        i, j = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M)
        there, real = i < load_fact(parts, part_count, SIZE, part), j < load_fact(columns, column_count, SIZE, span)
        corner = cost + load_fact(parts, part_count, CORNER, part) + load_fact(columns, column_count, START, span)
        block = corner + i[:, None] * load_fact(parts, part_count, WIDTH, part) + j[None, :]
        c = tl.load(block, mask=there[:, None] & real[None, :], other=float("inf"))
        taken = logs + load_fact(columns, column_count, ACROSS_AT, span) + load_fact(parts, part_count, START, part)
        taken = tl.load(taken + i, mask=there, other=0.0)
        sums = tl.sum(tl.exp(-c / epsilon - taken[:, None]), 0)
        tl.store(out + (q * most + o) * width + j, sums, mask=j < width)


@triton.jit(do_not_specialize=["first_row", "row_count", "column_count", "begin", "most", "width"])
def add_mean_logs(
    rows, row_count, first_row, parts, begin, columns, column_count, sums, epsilon, out, most, width,
    BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Add `eps * (log n_k - mean over the columns j of the pair of log S_jkl)` to `out` (P,), never too much.

    Program (k, o) adds up the parts [parts[0, k], parts[1, k]) of `sums` (Q, most, m), whose first part is `begin`.
    """
    k, o = tl.program_id(0).to(tl.int64) + first_row, tl.program_id(1).to(tl.int64)
    if o < load_fact(rows, row_count, OTHERS, k):
        span = load_fact(rows, row_count, FIRST, k) + o
        j, size = tl.arange(0, BLOCK_M), load_fact(columns, column_count, SIZE, span)
        n = load_fact(rows, row_count, SIZE, k).to(tl.float32)
        # A term may underflow. With the smallest number for each, a sum is never too small.
        total = tl.zeros([BLOCK_M], tl.float32) + n * _TINY
        for q in range(tl.load(parts + k) - begin, tl.load(parts + row_count + k) - begin):
            total += tl.load(sums + (q * most + o) * width + j, mask=j < size, other=0.0)
        logs = tl.where(j < size, tl.log(total / n), 0.0)
        pair = out + load_fact(rows, row_count, PAIR, k) + o * load_fact(rows, row_count, STEP, k)
        tl.store(pair, tl.load(pair) - epsilon * (tl.sum(logs, 0) / size.to(tl.float32)))


@triton.jit(do_not_specialize=["count", "width", "height"])
def finish_costs(
    products, count, width, x, y, x_norms, y_norms, ends, scale, epsilon, cancellation, cost, logs, height,
    HIDDEN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, LOGS: tl.constexpr,
):  # fmt: skip
    """Fill `cost` (count, width) float32 with `||x_i - y_j|| / scale`, from `products` (count, width), `x_i . y_j`.

    Program (block, r) takes the columns [ends[r], ends[r + 1]). With LOGS it also fills its row of `logs` (R, height)
    with `log sum_j exp(-C_ij / eps)` over these columns. Squared distances below `cancellation` of the squared norms
    are computed again from the tokens x (count, HIDDEN) and y (width, HIDDEN), in the dtype of the products. Norms are
    float64.
    """
    i, r = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.program_id(1)
    first = tl.load(ends + r)
    j, last = first + tl.arange(0, BLOCK_M), tl.load(ends + r + 1)
    own, other = i < count, j < last
    there = own[:, None] & other[None, :]
    places = i[:, None].to(tl.int64) * width + j[None, :]
    product = tl.load(products + places, mask=there, other=0.0)
    of_rows, of_columns = tl.load(x_norms + i, mask=own, other=1.0), tl.load(y_norms + j, mask=other, other=1.0)
    of_rows, of_columns = (of_rows * of_rows).to(product.dtype), (of_columns * of_columns).to(product.dtype)
    norms = of_rows[:, None] + of_columns[None, :]
    squared = norms - 2 * product
    near = there & (squared <= cancellation * norms)
    if tl.max(tl.max(near.to(tl.int32), 1), 0) > 0:
        exact = tl.zeros_like(squared)
        for k in range(0, HIDDEN, BLOCK_D):
            d = k + tl.arange(0, BLOCK_D)
            of_x = tl.load(
                x + i[:, None].to(tl.int64) * HIDDEN + d, mask=own[:, None] & (d < HIDDEN)[None, :], other=0.0
            )
            of_y = tl.load(y + j[:, None] * HIDDEN + d, mask=other[:, None] & (d < HIDDEN)[None, :], other=0.0)
            apart = of_x.to(squared.dtype)[:, None, :] - of_y.to(squared.dtype)[None, :, :]
            exact += tl.sum(apart * apart, 2)
        squared = tl.where(near, exact, squared)
    c = (tl.sqrt(squared) / scale).to(tl.float32)
    tl.store(cost + places, c, mask=there)
    if LOGS:
        exponents = tl.where(there, -c / epsilon, float("-inf"))
        largest = tl.where(own, tl.max(exponents, 1), 0.0)
        sums = largest + tl.log(tl.sum(tl.exp(exponents - largest[:, None]), 1))
        tl.store(logs + r.to(tl.int64) * height + i, sums, mask=own)


@triton.jit(do_not_specialize=["count"])
def join_parts(table, count, parts, part_logs, out, BLOCK: tl.constexpr):
    """Fill `out` with `log sum_j exp(-C_ij / eps)` over the columns j of each span l, for all rows i of its tile.

    `parts` (3, L) int64 holds of each span where its tile's logarithms (R, T_a) begin in `part_logs`, and the span's
    first part and last part + 1.
    """
    span = tl.program_id(0).to(tl.int64)
    height = load_fact(table, count, ACROSS, span)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(1) * BLOCK < height:
        there, own = i < height, part_logs + tl.load(parts + span)
        first, last = tl.load(parts + count + span), tl.load(parts + 2 * count + span)
        largest = tl.load(own + first * height + i, mask=there, other=0.0)
        total = tl.full([BLOCK], 1.0, tl.float32)
        for part in range(first + 1, last):
            log = tl.load(own + part * height + i, mask=there, other=0.0)
            larger = tl.maximum(largest, log)
            total = total * tl.exp(largest - larger) + tl.exp(log - larger)
            largest = larger
        tl.store(out + load_fact(table, count, ACROSS_AT, span) + i, largest + tl.log(total), mask=there)
