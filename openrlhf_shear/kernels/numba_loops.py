"""Compiled inner loops of `numba_sinkhorn` on a kernel K; the plan of a pair's block is `u_i K_ij v_j`.

`numba_matrix` fills K and bounds all pairs. These loops call nothing of other files: numba would keep a cached caller
after its callee changed.

Legend: T_a/T_b tokens of the tile, K/L spans of rows/columns, P pairs, n/m tokens of a pair's spans, u/v scalings.
"""

import math

import numpy as np
from numba import njit

CONVERGED, DROPPED, UNCONVERGED, FLAGGED = range(4)
_CHECK_EVERY = 10
_FIRST_CHECKS = (1, 2, 4, 7)  # iterations; most pairs are dropped at these checks
_LEAST_EIGHTHS, _MOST_EIGHTHS = 4, 7  # over-relaxation omega - 1, in eighths: powers that square roots can compute
_LOG_NEGLIGIBLE = -14.0  # of a density (the mean density is 1): a lost mass of 1e-6 changes the value by 1e-6 eps
_KERNELS = 6  # tries to build a pair's kernel, before the reference solves the pair
_GROUP = 16  # rows at a time: their part of the block stays in the innermost cache for the row and the column sums
TINY = 1.2e-38  # the smallest float32 that is not denormal
_TWO_THIRDS = int(np.float32(2 / 3).view(np.int32))  # the bits of float32 2/3
_LOG_2 = np.float32(math.log(2))
_FACTORS = 8  # so many numbers between TINY and e^88 have a product that fits into a float64
# Without "nnan" and "ninf", since these loops test for numbers that are not finite. Functions whose numbers are all
# finite use full fastmath, with which more loops are vectorised.
_OPTIONS = {"nogil": True, "cache": True, "error_model": "numpy"}
_FASTMATH = {"reassoc", "contract", "nsz", "arcp", "afn"}
_compiled = njit(**_OPTIONS, fastmath=_FASTMATH)
# Helpers are inlined by force. Otherwise a process that compiles their caller calls the helper's own code. A process
# that reads the caller from numba's cache calls a copy of it, which may round differently.
_inlined = njit(**_OPTIONS, fastmath=_FASTMATH, forceinline=True)
_inlined_finite = njit(**_OPTIONS, fastmath=True, forceinline=True)


@_inlined_finite
def _log(x):
    """Return the float32 `log` of normal numbers > 0, vectorised.

    The log of 2^k m with 2/3 <= m < 4/3 is `k log 2 + 2 artanh(t)`, `t = (m - 1) / (m + 1)`, |t| <= 1/5. The next term
    of the series is below 4e-9.
    """
    bits = np.float32(x).view(np.int32)
    whole = np.int32((bits - np.int32(_TWO_THIRDS)) >> np.int32(23))
    m = np.int32(bits - np.int32(whole << np.int32(23))).view(np.float32)
    t = (m - np.float32(1)) / (m + np.float32(1))
    square = t * t
    series = np.float32(2 / 9)
    series = series * square + np.float32(2 / 7)
    series = series * square + np.float32(2 / 5)
    series = series * square + np.float32(2 / 3)
    series = series * square + np.float32(2)
    return whole * _LOG_2 + t * series


@_compiled
def solve_pairs(
    source, costs, row_starts, row_sizes, column_starts, column_sizes, pairs, limits, epsilon, shift, floor, tolerance,
    max_iterations, value, f, g, iterations, error, status,
):  # fmt: skip
    """Solve `pairs` (P, 2) one after the other, and fill the last six arrays: (P,), (P, n), (P, m) and three (P,).

    A pair's first block is cut from the tile's kernel. If the block loses entries that matter, the pair gets a separate
    kernel, then further ones from the potentials found so far. The pair is flagged if entries that matter stay lost,
    or if the tile's kernel has lost them already.

    Args:
        source: the tile's kernel (T_a, T_b); with `costs`, the tile's costs, which lose no entries.
        floor: logarithm of the smallest entry of that kernel.
    """
    width = (column_sizes.max() + 15) // 16 * 16
    buffer = np.zeros((row_sizes.max(), width), np.float32)
    of_rows, of_columns = np.empty((3, len(buffer)), np.float32), np.empty((3, width), np.float32)
    log_alpha, u, sums = of_rows[0], of_rows[1], of_rows[2]
    log_beta, v, column_sums = of_columns[0], of_columns[1], of_columns[2]
    for p in range(len(pairs)):
        k, other = pairs[p]
        n, m = row_sizes[k], column_sizes[other]
        left, block, rows = column_starts[other], buffer[:n], source[row_starts[k] : row_starts[k] + n]
        column_sums[:m] = 0
        for attempt in range(1 if costs else 0, _KERNELS):
            if attempt == 0:
                _cut(rows, left, m, block, log_alpha, log_beta, v, column_sums)
            else:
                _build(rows, costs, left, m, epsilon, column_sums, block, log_alpha, log_beta)
            offset = shift + epsilon * (log_alpha[:n].mean() + log_beta[:m].mean())
            value[p], iterations[p], error[p], status[p] = _solve(
                block, m, u, v, sums, column_sums, limits[p], epsilon, offset, tolerance, max_iterations
            )
            zeros = _count_zeros(block, m)
            if zeros == 0 and status[p] == DROPPED:  # the potentials of a dropped pair are not needed
                break
            if status[p] == FLAGGED:  # infinite scalings give no potentials for another kernel
                column_sums[:m] = 0
                if attempt == 0:
                    continue
                break
            _log_scalings(u, n, log_alpha, sums)
            _log_scalings(v, m, log_beta, column_sums)
            lost = _lost_mass(block, rows, costs, left, m, epsilon, floor, sums, column_sums) if zeros > 0 else 0
            if lost == 0:
                for i in range(n):
                    f[p, i] = epsilon * sums[i] + shift
                for j in range(m):
                    g[p, j] = epsilon * column_sums[j]
                break
            status[p] = FLAGGED
            if lost == 2:
                break


@_inlined
def _log_kernel(entry, costs, epsilon, floor):
    """Return the logarithm of a kernel entry, given the entry or, with `costs`, its cost."""
    return -entry / epsilon if costs else math.log(entry) if entry > 0 else floor


@_inlined
def _log_scalings(scaling, count, log_taken_out, logs):
    """Fill `logs` with f or g such that an entry of the plan has density `exp(f_i + g_j) K_ij`, K before `_cut`."""
    for i in range(count):
        logs[i] = math.log(scaling[i] * count) + log_taken_out[i]


@_inlined
def _count_zeros(block, m):
    zeros = np.int32(0)
    for i in range(len(block)):
        row = block[i, :m]
        for j in range(m):
            zeros += np.int32(row[j] == 0)
    return zeros


@_inlined
def _lost_mass(block, rows, costs, left, m, epsilon, floor, f, g):
    """Say whether an entry that is 0 in the block carries a density that matters.

    Returns 1 if the entry underflowed in the block, 2 if it was lost before (at `floor` or less), else 0.
    """
    for i in range(len(block)):
        for j in range(m):
            if block[i, j] == 0:
                entry = rows[i, left + j]
                log_density = f[i] + g[j] + _log_kernel(entry, costs, epsilon, floor)
                if not log_density < _LOG_NEGLIGIBLE:
                    return 1 if costs or entry > 0 else 2
    return 0


@_inlined_finite
def _cut(rows, left, m, block, log_alpha, log_beta, ones, largest):
    """Copy a block from the `rows` of a kernel, and scale it; padding becomes 0.

    alpha scales its rows to a sum of 1, then beta its columns to a largest entry of 1.
    """
    ones[:] = 1
    _row_sums(rows, left, ones[:m], log_alpha, 0, len(rows))
    largest[:] = TINY  # so that a row or column that is all 0 shows up as missing mass
    for i in range(len(block)):
        row, source = block[i], rows[i, left : left + m]
        total = max(log_alpha[i], np.float32(TINY))
        alpha = 1 / total
        for j in range(m):
            row[j] = source[j] * alpha
            largest[j] = max(largest[j], row[j])
        row[m:] = 0
        log_alpha[i] = -_log(total)
    for j in range(m):
        log_beta[j] = -_log(largest[j])
        largest[j] = 1 / largest[j]
    for i in range(len(block)):
        row = block[i]
        for j in range(m):
            row[j] *= largest[j]


@_inlined
def _build(rows, costs, left, m, epsilon, g, block, log_alpha, log_beta):
    """Make a block like that of `_cut`, with logarithms: maxima are subtracted before `exp`, and rows' maxima are 1.

    The columns' potentials `g` are also taken out, since near the solution the entries that matter are then among the
    largest.
    """
    n = len(block)
    log_beta[:] = np.inf
    for i in range(n):
        log_alpha[i] = np.inf
        for j in range(m):
            block[i, j] = -_log_kernel(rows[i, left + j], costs, epsilon, -np.inf) - g[j]
            log_alpha[i] = min(log_alpha[i], block[i, j])
        for j in range(m):
            log_beta[j] = min(log_beta[j], block[i, j] - log_alpha[i])
    for i in range(n):
        for j in range(m):
            block[i, j] = math.exp(log_alpha[i] + log_beta[j] - block[i, j])
        block[i, m:] = 0
    log_beta[:m] += g[:m]


@_inlined
def _solve(block, m, u, v, sums, column_sums, limit, epsilon, offset, tolerance, max_iterations):
    """Solve a block, and return the dual value, the iterations, the marginal error and the pair's status."""
    n = len(block)
    u[:n] = np.float32(1 / n)
    v[:m] = np.float32(1 / m)
    v[m:] = 0
    constant = epsilon * (math.log(n) + math.log(m)) + offset
    eighths, dual, error, done, checks = _LEAST_EIGHTHS, -np.inf, np.inf, 0, 0
    while True:
        early = checks < len(_FIRST_CHECKS)
        check = _FIRST_CHECKS[checks] if early else (checks - len(_FIRST_CHECKS) + 1) * _CHECK_EVERY
        for _ in range(check - done - 1):
            _iterate(block, m, u, v, sums, column_sums, eighths, eighths)
        _iterate(block, m, u, v, sums, column_sums, eighths, 0)
        span, done, checks = check - done, check, checks + 1
        before, dual = dual, epsilon * (_mean_log(u, n) + _mean_log(v, m)) + constant
        if not -np.inf < dual < np.inf:
            return dual, done, error, FLAGGED
        if dual > limit:
            return dual, done, error, DROPPED
        if early:  # exact columns serve the dual value only; over-relaxed columns converge faster
            _over_relax(v[:m], column_sums[:m], eighths)
            continue
        error_before, error = error, _row_error(block, u, v, sums)
        if error <= tolerance:
            return dual, done, error, CONVERGED
        if done >= max_iterations:
            return dual, done, error, UNCONVERGED
        eighths = _choose_relaxation(eighths, (error / error_before) ** (1 / span))
        if dual < before - 1e-6 * abs(before):  # more than the rounding of a dual value
            eighths = 0


@_inlined
def _choose_relaxation(eighths, rate):
    """Choose SOR's optimum 2 / (1 + sqrt(1 - k)), rounded; k is the plain rate that explains the observed `rate`."""
    omega = 1 + eighths / 8
    if not omega - 1 < rate < 1:  # at a rate of omega - 1 or less, omega is at or above its optimum
        return eighths
    plain = min((rate + omega - 1) ** 2 / (rate * omega**2), 1.0)
    optimum = 2 / (1 + math.sqrt(1 - plain))
    return min(max(round((optimum - 1) * 8), _LEAST_EIGHTHS), _MOST_EIGHTHS)


@_inlined
def _iterate(block, m, u, v, sums, column_sums, row_eighths, column_eighths):
    """Scale the rows, then the columns, in one pass over the block; `column_sums` ends as the columns' ratios."""
    n = len(block)
    a = np.float32(1 / n)
    column_sums[:] = 0
    for first in range(0, n, _GROUP):
        last = min(first + _GROUP, n)
        _row_sums(block, 0, v, sums, first, last)
        for i in range(first, last):
            sums[i] = a / (u[i] * sums[i])
            u[i] *= sums[i]
        _over_relax(u[first:last], sums[first:last], row_eighths)
        _add_rows(block, 0, u, column_sums, first, last)
    b = np.float32(1 / m)
    for j in range(m):
        column_sums[j] = b / (v[j] * column_sums[j])
        v[j] *= column_sums[j]
    _over_relax(v[:m], column_sums[:m], column_eighths)


@_inlined
def _over_relax(scaling, ratio, eighths):
    """Compute `scaling *= ratio ** (eighths / 8)` by square roots: over-relaxation on top of `scaling *= ratio`."""
    if eighths == 4:
        for i in range(len(scaling)):
            scaling[i] *= np.sqrt(ratio[i])
    elif eighths == 5:
        for i in range(len(scaling)):
            root = np.sqrt(ratio[i])
            scaling[i] *= root * np.sqrt(np.sqrt(root))
    elif eighths == 6:
        for i in range(len(scaling)):
            root = np.sqrt(ratio[i])
            scaling[i] *= root * np.sqrt(root)
    elif eighths == 7:
        for i in range(len(scaling)):
            root = np.sqrt(ratio[i])
            fourth = np.sqrt(root)
            scaling[i] *= root * fourth * np.sqrt(fourth)


@_inlined
def _row_error(block, u, v, sums):
    """Return the marginal error `sum_i |sum_j plan_ij - 1/n|`."""
    _row_sums(block, 0, v, sums, 0, len(block))
    a = np.float32(1 / len(block))
    total = np.float32(0)
    for i in range(len(block)):
        total += abs(u[i] * sums[i] - a)
    return total


@_inlined
def _row_sums(kernel, left, v, sums, first, last):
    """Fill `sums` with `sum_j K_ij v_j` of the rows [first, last), for the columns from `left`, four rows at a time."""
    right = left + len(v)
    for i in range(first, last - 3, 4):
        x0, x1 = kernel[i, left:right], kernel[i + 1, left:right]
        x2, x3 = kernel[i + 2, left:right], kernel[i + 3, left:right]
        s0 = s1 = s2 = s3 = np.float32(0)
        for j in range(len(v)):
            s0 += x0[j] * v[j]
            s1 += x1[j] * v[j]
            s2 += x2[j] * v[j]
            s3 += x3[j] * v[j]
        sums[i], sums[i + 1], sums[i + 2], sums[i + 3] = s0, s1, s2, s3
    for i in range(last - (last - first) % 4, last):
        total = np.float32(0)
        row = kernel[i, left:right]
        for j in range(len(v)):
            total += row[j] * v[j]
        sums[i] = total


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


@_compiled
def row_span_sums(kernel, left, right, starts, sizes, scalings, lost, logs):
    """Fill columns j of `logs` (K, m) with `log sum_i (u_ki (K_ij + lost) + tiny)` over the rows i of each span k.

    Columns are in [left, right). The sum is an upper bound despite dropped kernel entries (at most `lost` each) and
    products that underflow.
    """
    total = np.empty(right - left, np.float32)
    for k in range(len(starts)):
        total[:] = scalings[k].sum() * lost + sizes[k] * TINY
        _add_rows(kernel[starts[k] : starts[k] + sizes[k]], left, scalings[k], total, 0, sizes[k])
        for j in range(len(total)):
            logs[k, left + j] = _log(total[j])


@_compiled
def column_span_sums(kernel, first, last, starts, sizes, scalings, lost, logs):
    """Fill columns i of `logs` (K, n) with `log sum_j (v_lj (K_ij + lost) + tiny)` over the columns j of each span l.

    Rows i are in [first, last). The sum is an upper bound, as in `row_span_sums`.
    """
    rows, total = kernel[first:last], np.empty(last - first, np.float32)
    for k in range(len(starts)):
        v = scalings[k, : sizes[k]]
        _row_sums(rows, starts[k], v, total, 0, len(rows))
        beyond = np.float32(v.sum() * lost + sizes[k] * TINY)
        for i in range(len(total)):
            logs[k, first + i] = _log(total[i] + beyond)


@_compiled
def span_means(values, starts, sizes, means):
    """Fill `means` (K, L) float64 with the means of each row of `values` (K, T) over L spans."""
    running = np.zeros(values.shape[1] + 1)
    for k in range(len(values)):
        for j in range(values.shape[1]):
            running[j + 1] = running[j] + values[k, j]
        for other in range(len(starts)):
            means[k, other] = (running[starts[other] + sizes[other]] - running[starts[other]]) / sizes[other]
