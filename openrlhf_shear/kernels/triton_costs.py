"""Triton kernels of `triton_sinkhorn` that finish token costs: one pass from products to costs and their sums.

The plain reference is `transport.geometry.token_costs`.

Legend: T_a/T_b tokens of a tile, d hidden size, R parts between the edges of column spans, L column spans.
"""

import triton
import triton.language as tl

from openrlhf_shear.kernels.triton_tables import ACROSS, ACROSS_AT, load_fact


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
