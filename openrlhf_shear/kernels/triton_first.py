"""Triton kernels of `triton_sinkhorn` for the bounds of all pairs after one exact iteration: see `numba_first`.

`triton_kernels.span_log_sums` makes the row potentials first, one set for each column span.

Legend: T_a/T_b tokens of the tile, K/L spans of rows/columns, P parts of rows, m tokens of the longest column span.
"""

import triton
import triton.language as tl

_TINY = tl.constexpr(1.2e-38)  # the smallest float32 that is not denormal


@triton.jit(
    do_not_specialize=["width", "rows", "spans"], do_not_specialize_on_alignment=["row_stride", "column_stride"]
)
def part_sums(
    cost, row_stride, column_stride, ends, starts, sizes, logs, rows, epsilon, out, spans, width,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Fill `out` (P, L, m) with the sums over each part's rows i of `K_ij / R_il`, 0 beyond a span's columns.

    Program (p, l) takes the rows [ends[p], ends[p + 1]) and the columns of span l; `logs` (L, T_a) holds `log R_il`.
    """
    p, span = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first = tl.load(ends + p)
    i, j = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M)
    there, real = i < tl.load(ends + p + 1) - first, j < tl.load(sizes + span)
    corner = cost + first * row_stride + tl.load(starts + span) * column_stride
    block = corner + i[:, None].to(tl.int64) * row_stride + j[None, :].to(tl.int64) * column_stride
    c = tl.load(block, mask=there[:, None] & real[None, :], other=float("inf"))
    taken = tl.load(logs + span * rows + first + i, mask=there, other=0.0)
    sums = tl.sum(tl.exp(-c / epsilon - taken[:, None]), 0)
    tl.store(out + (p * spans + span) * width + j, sums, mask=j < width)


@triton.jit(do_not_specialize=["spans", "width"])
def mean_logs(parts, row_sizes, sizes, sums, out, spans, width, BLOCK_M: tl.constexpr):
    """Fill `out` (K, L) with the means over the columns j of each pair of `log S_jkl`, never too small.

    Program (k, l) adds up the parts [parts[0, k], parts[1, k]) of `sums` (P, L, m), from `part_sums`.
    """
    k, span = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    j, size = tl.arange(0, BLOCK_M), tl.load(sizes + span)
    # A term may underflow. With the smallest number for each, a sum is never too small.
    total = tl.zeros([BLOCK_M], tl.float32) + tl.load(row_sizes + k).to(tl.float32) * _TINY
    for p in range(tl.load(parts + k), tl.load(parts + tl.num_programs(0) + k)):
        total += tl.load(sums + (p * spans + span) * width + j, mask=j < size, other=0.0)
    logs = tl.where(j < size, tl.log(total), 0.0)
    tl.store(out + k * spans + span, tl.sum(logs, 0) / size.to(tl.float32))
