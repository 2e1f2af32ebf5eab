"""Compiled loops of `numba_sinkhorn`: the dual value of every pair after one exact iteration, from sums over windows.

From g = 0, an exact row update makes `f_i = -log R_il` of row i, where `R_il` sums K over the columns of span l. It
depends on no other row. The exact column update then makes `g_j = -log S_jkl`, where `S_jkl` sums `K_ij / R_il` over
the rows of span k. Spans overlap, so both sums are made once for the parts between two neighbouring ends of spans, and
a span adds up its parts. That takes some 6 operations for each entry of K; pair by pair it takes 27.

Legend: T tokens, K/L spans of rows/columns, P/Q parts of rows/columns, m tokens of the longest column span.
"""

import math

import numpy as np
from numba import njit

TINY = 1.2e-38  # the smallest float32 that is not denormal
_FACTORS = 8  # so many numbers between TINY and e^88 have a product that fits into a float64
_OPTIONS = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp", "afn"},
}
_compiled, _inlined = njit(**_OPTIONS), njit(**_OPTIONS, forceinline=True)  # why: numba_loops.py


@_compiled
def part_sums(kernel, row_parts, column_parts, first_part, last_part, starts, sizes, logs, inverse, sums):
    """Sum over the rows of each part, for every column span.

    Args:
        kernel: K (rows, columns).
        row_parts, column_parts: (P + 1,), (Q + 1,) ends of parts, ascending; those of rows within `kernel`.
        first_part, last_part: (L,) column span l is the union of the parts [first_part, last_part).
        starts, sizes: (L,) of the column spans.
        logs: (P, L) float64, filled with the sum of `log R_il`.
        inverse: (P, L) float64, filled with the sum of `1 / R_il`.
        sums: (P, L, m) float32, filled with the sums of `K_ij / R_il`; undefined beyond a span's size.
    """
    widest = 0
    for p in range(len(row_parts) - 1):
        widest = max(widest, row_parts[p + 1] - row_parts[p])
    of_parts, ratios = np.empty(len(column_parts) - 1, np.float32), np.empty((len(starts), widest), np.float32)
    products = np.empty(len(starts))
    for p in range(len(row_parts) - 1):
        begin, end = row_parts[p], row_parts[p + 1]
        logs[p], inverse[p], products[:] = 0, 0, 1
        for i in range(begin, end):
            for q in range(len(of_parts)):
                total = np.float32(0)
                part = kernel[i, column_parts[q] : column_parts[q + 1]]
                for j in range(len(part)):
                    total += part[j]
                of_parts[q] = total
            for k in range(len(starts)):
                total = np.float32(TINY)
                for q in range(first_part[k], last_part[k]):
                    total += of_parts[q]
                ratios[k, i - begin] = np.float32(1) / total
                inverse[p, k] += ratios[k, i - begin]
                products[k] *= total
            if (i - begin) % _FACTORS == _FACTORS - 1 or i == end - 1:
                for k in range(len(starts)):
                    logs[p, k] += math.log(products[k])
                    products[k] = 1
        for k in range(len(starts)):
            _weighted_sums(kernel[begin:end], starts[k], ratios[k], sums[p, k, : sizes[k]])


@_inlined
def _weighted_sums(rows, left, weights, sums):
    """Fill `sums` with `sum_i w_i K_ij` for the columns from `left`, four rows at a time."""
    right, n = left + len(sums), len(rows)
    sums[:] = 0
    for i in range(0, n - 3, 4):
        x0, x1 = rows[i, left:right], rows[i + 1, left:right]
        x2, x3 = rows[i + 2, left:right], rows[i + 3, left:right]
        w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        for j in range(len(sums)):
            sums[j] += w0 * x0[j] + w1 * x1[j] + w2 * x2[j] + w3 * x3[j]
    for i in range(n - n % 4, n):
        row = rows[i, left:right]
        for j in range(len(sums)):
            sums[j] += weights[i] * row[j]


@_compiled
def first_values(first_part, last_part, row_sizes, column_sizes, logs, inverse, sums, lost, values):
    """Fill `values` (K, L) float32 with the dual values of pairs, in units of eps, without the kernel's shift.

    `S_jkl` is an upper bound despite dropped kernel entries (at most `lost` each) and products that underflow, so the
    value is a lower bound.

    Args:
        first_part, last_part: (K,) row span k is the union of the parts [first_part, last_part).
        logs, inverse, sums: from `part_sums`.
    """
    total = np.empty(sums.shape[2], np.float32)
    for k in range(len(first_part)):
        begin, end, n = first_part[k], last_part[k], row_sizes[k]
        for other in range(len(column_sizes)):
            m, of_rows, beyond = column_sizes[other], 0.0, 0.0
            for p in range(begin, end):
                of_rows += logs[p, other]
                beyond += inverse[p, other]
            total[:m] = np.float32(beyond * lost + n * TINY)
            for p in range(begin, end):
                part = sums[p, other]
                for j in range(m):
                    total[j] += part[j]
            of_columns = 0.0
            for first in range(0, m, _FACTORS):
                product = 1.0
                for j in range(first, min(first + _FACTORS, m)):
                    product *= total[j]
                of_columns += math.log(product)
            values[k, other] = math.log(n) - of_rows / n - of_columns / m
