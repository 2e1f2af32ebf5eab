"""Triton kernels of `triton_sinkhorn` for bounds of all pairs: from potentials, and after one exact iteration.

Tables of spans are those of `triton_tables`. In a list of `span_log_sums`, span k has a number for each token of the
other side. Rows and columns change places with TRANSPOSED, which is said at compile time, as costs of a row are
neighbours in memory.

Legend: K spans, P pairs, m tokens of the longest column span, Q parts between the edges of row spans.
"""

import triton
import triton.language as tl

from openrlhf_shear.kernels.triton_tables import (
    ACROSS,
    ACROSS_AT,
    CORNER,
    FIRST,
    OTHERS,
    PAIR,
    SIZE,
    START,
    STEP,
    WIDTH,
    load_fact,
)

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
