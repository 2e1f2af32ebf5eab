"""Compiled inner loops of `numba_sinkhorn` that fill the kernel K of a tile from the products of its tokens."""

import math

import numpy as np
from numba import njit

_LOG2_E, _LOG_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))
_OPTIONS = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": True}  # all numbers here are finite
_compiled, _inlined = njit(**_OPTIONS), njit(**_OPTIONS, forceinline=True)  # why: numba_loops.py


@_compiled
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


@_inlined
def _squared_distance(x, y):
    total = 0.0
    for k in range(len(x)):
        total += (np.float64(x[k]) - np.float64(y[k])) ** 2
    return total


@_inlined
def _largest(values):
    """Return the largest of float32 numbers >= 0, by their bits, which have the same order.

    Unlike a maximum of floats, a maximum of integers is vectorised.
    """
    bits, largest = values.view(np.int32), np.int32(0)
    for j in range(len(bits)):
        largest = max(largest, bits[j])
    return np.int32(largest).view(np.float32)


@_inlined
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
