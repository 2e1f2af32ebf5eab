"""Compiled inner loops of `numba_sinkhorn` that fill the kernel K of a tile, and bound all its pairs by sums of K.

They call nothing of other files, as those of `numba_loops`, so both have the same two helpers.

Legend: n/m tokens of the tile's rows and columns, d hidden size, K/L spans of rows/columns, P/Q parts of rows/columns.
In `part_sums` and `first_values`, m is the tokens of the longest column span.
"""

import math

import numpy as np
from numba import njit

TINY = 1.2e-38  # the smallest float32 that is not denormal
_LOG_2, _LOG2_E = np.float32(math.log(2)), np.float32(1 / math.log(2))
_FACTORS = 8  # so many numbers between TINY and e^88 have a product that fits into a float64
# Why these options: numba_loops.py.
_OPTIONS = {"nogil": True, "cache": True, "error_model": "numpy"}
_FASTMATH = {"reassoc", "contract", "nsz", "arcp", "afn"}
_compiled, _compiled_finite = njit(**_OPTIONS, fastmath=_FASTMATH), njit(**_OPTIONS, fastmath=True)
_inlined = njit(**_OPTIONS, fastmath=_FASTMATH, forceinline=True)
_inlined_finite = njit(**_OPTIONS, fastmath=True, forceinline=True)


@_compiled_finite
def make_kernel(
    products, first, x, y, x_squared, y_squared, cancellation, shift, scale, floor, kernel, row_max, column_max
):
    """Fill the rows from `first` of the kernel `K = exp(shift - ||x_i - y_j|| / scale)`, (n, m) float32.

    Entries with an exponent below `floor` become 0. All inputs must be finite. Squared distances below `cancellation`
    of the squared norms are computed again, from the tokens x (n, d) and y (m, d).

    Args:
        products: `x_i . y_j` of the rows to fill.
        row_max: (n,), filled with the maxima of these rows.
        column_max: (m,), raised to the maxima of the columns over these rows.

    Returns:
        Whether an entry is 0.
    """
    squared, zeros = np.empty(kernel.shape[1], np.float32), np.float32(0)
    scale, shift, floor = np.float32(1 / scale), np.float32(shift), np.float32(floor)
    for i in range(first, first + len(products)):
        source, row, own, near = products[i - first], kernel[i], x_squared[i], np.float32(0)
        for j in range(len(squared)):
            squared[j] = own + y_squared[j] - np.float32(2) * source[j]
            near += np.float32(squared[j] <= cancellation * (own + y_squared[j]))
        if near > 0:
            for j in range(len(squared)):
                if squared[j] <= cancellation * (own + y_squared[j]):
                    squared[j] = _squared_distance(x[i], y[j])
        for j in range(len(squared)):
            exponent = shift - np.sqrt(squared[j]) * scale
            value = _exp(floor if exponent < floor else exponent)
            row[j] = np.float32(0) if exponent < floor else value
            zeros += np.float32(exponent < floor)
            column_max[j] = max(column_max[j], row[j])
        row_max[i] = _largest(row)
    return zeros > 0


@_inlined_finite
def _squared_distance(x, y):
    total = 0.0
    for k in range(len(x)):
        total += (np.float64(x[k]) - np.float64(y[k])) ** 2
    return total


@_inlined_finite
def _largest(values):
    """Return the largest of float32 numbers >= 0, by their bits, which have the same order.

    Unlike a maximum of floats, a maximum of integers is vectorised.
    """
    bits, largest = values.view(np.int32), np.int32(0)
    for j in range(len(bits)):
        largest = max(largest, bits[j])
    return np.int32(largest).view(np.float32)


@_inlined_finite
def _exp(x):
    """Return the float32 `exp` of -87 < x < 88, vectorised: 2^k times a polynomial for 2^r, |r| <= 1/2.

    The polynomial is the Taylor series of `exp(r log 2)`, whose next term is below 2e-7.
    """
    doubled = x * _LOG2_E
    whole = np.floor(doubled + np.float32(0.5))
    r = (doubled - whole) * _LOG_2
    value = np.float32(1 / 720)
    value = value * r + np.float32(1 / 120)
    value = value * r + np.float32(1 / 24)
    value = value * r + np.float32(1 / 6)
    value = value * r + np.float32(1 / 2)
    value = (value * r + np.float32(1)) * r + np.float32(1)
    return value * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


@_compiled
def part_sums(kernel, row_parts, column_parts, first_part, last_part, starts, sizes, logs, inverse, sums):
    """Sum over the rows of each part, for every column span: what `first_values` needs.

    From g = 0, an exact row update makes `f_i = -log R_il` of row i, where `R_il` sums K over the columns of span l. It
    depends on no other row. The exact column update then makes `g_j = -log S_jkl`, where `S_jkl` sums `K_ij / R_il`
    over the rows of span k. Spans overlap, so both sums are made once for the parts between two neighbouring ends of
    spans, and a span adds up its parts. That takes some 6 operations for each entry of K; pair by pair it takes 27.

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
            of_part = sums[p, k, : sizes[k]]
            of_part[:] = 0
            _add_rows(kernel[begin:end], starts[k], ratios[k], of_part, 0, end - begin)


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
            values[k, other] = math.log(n) - of_rows / n - _mean_log(total, m)


@_inlined
def _add_rows(kernel, left, u, column_sums, first, last):
    """Add `sum_i u_i K_ij` over the rows [first, last) to `column_sums`, for the columns from `left`, by four rows."""
    right = left + len(column_sums)
    for i in range(first, last - 3, 4):
        x0, x1 = kernel[i, left:right], kernel[i + 1, left:right]
        x2, x3 = kernel[i + 2, left:right], kernel[i + 3, left:right]
        u0, u1, u2, u3 = u[i], u[i + 1], u[i + 2], u[i + 3]
        for j in range(len(column_sums)):
            column_sums[j] += u0 * x0[j] + u1 * x1[j] + u2 * x2[j] + u3 * x3[j]
    for i in range(last - (last - first) % 4, last):
        row = kernel[i, left:right]
        for j in range(len(column_sums)):
            column_sums[j] += u[i] * row[j]


@_inlined
def _mean_log(scaling, count):
    """Return the mean logarithm, by logarithms of products."""
    total = 0.0
    for first in range(0, count, _FACTORS):
        product = 1.0
        for i in range(first, min(first + _FACTORS, count)):
            product *= scaling[i]
        total += math.log(product)
    return total / count
