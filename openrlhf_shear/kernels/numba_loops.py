"""The compiled inner loops of `numba_sinkhorn`; the plan of a pair's block is `u_i K_ij v_j`.

Legend: T_a/T_b tokens of the tile, K spans, P pairs, n/m tokens of a pair's spans, u/v scalings of rows and columns.
"""

import math

import numpy as np
from numba import njit

CONVERGED, DROPPED, UNCONVERGED, FLAGGED = range(4)
_CHECK_EVERY = 10
_FIRST_CHECKS = (1, 2, 4, 7)  # promising pairs go on; most are dropped here
_LEAST_EIGHTHS, _MOST_EIGHTHS = 4, 7  # over-relaxation: omega - 1, in steps that square roots make
_LOG_NEGLIGIBLE = -14.0  # of a density (the mean density is 1): lost mass of 1e-6 moves the value by 1e-6 eps
_GROUP = 16  # rows whose block stays in the innermost cache between their sums and their share of the column sums
_TINY = 1.2e-38  # the smallest float32 that is not denormal
# Not "nnan" or "ninf": numbers that are not finite are looked for.
_compiled = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp", "afn"})


@_compiled
def _buffer(size):
    return np.empty(size, np.float32)


@_compiled
def solve_pairs(
    kernel, cost, row_starts, row_sizes, column_starts, column_sizes, pairs, limits, epsilon, shift, tolerance,
    max_iterations, value, f, g, iterations, error, status,
):  # fmt: skip
    """Solve `pairs` (P, 2) one after the other; the last six arrays are filled, (P,), (P, n), (P, m) and (P,). A pair
    whose block lost entries that matter gets a kernel of its own, from the costs.
    """
    width = (column_sizes.max() + 15) // 16 * 16
    buffer = np.zeros((row_sizes.max(), width), np.float32)
    log_alpha, u, sums = _buffer(len(buffer)), _buffer(len(buffer)), _buffer(len(buffer))
    log_beta, v, column_sums = _buffer(width), _buffer(width), _buffer(width)
    for p in range(len(pairs)):
        k, other = pairs[p]
        n, m = row_sizes[k], column_sizes[other]
        first, left, block = row_starts[k], column_starts[other], buffer[:n]
        for attempt in range(2):
            if attempt == 0:
                _cut(kernel, first, left, m, block, log_alpha, log_beta, column_sums)
                constant = shift
            else:
                _build(cost, first, left, m, epsilon, block, log_alpha, log_beta)
                constant = 0.0
            offset = constant + epsilon * (log_alpha[:n].mean() + log_beta[:m].mean())
            value[p], iterations[p], error[p], status[p] = _solve(
                block, m, u, v, sums, column_sums, limits[p], epsilon, offset, tolerance, max_iterations
            )
            _log_scalings(u, n, log_alpha, constant / epsilon, sums)
            _log_scalings(v, m, log_beta, 0.0, column_sums)
            if _misses_mass(block, cost, first, left, m, epsilon, sums, column_sums):
                status[p] = FLAGGED
            if status[p] != FLAGGED:
                break
        if status[p] != DROPPED:  # nobody asks for the potentials of a pair that was
            for i in range(n):
                f[p, i] = epsilon * sums[i]
            for j in range(m):
                g[p, j] = epsilon * column_sums[j]


@_compiled
def _log_scalings(scaling, count, log_taken_out, constant, logs):
    """Potentials in units of eps: the density of an entry of the plan is `exp(f_i + g_j - C_ij / eps)`."""
    for i in range(count):
        logs[i] = math.log(scaling[i] * count) + log_taken_out[i] + constant


@_compiled
def _misses_mass(block, cost, first, left, m, epsilon, f, g):
    """Whether an entry that underflowed to 0 in the block carries a density that matters."""
    for i in range(len(block)):
        row, lost = block[i, :m], 0
        for j in range(m):
            lost += row[j] == 0
        if lost > 0:
            for j in range(m):
                if row[j] == 0 and not f[i] + g[j] - cost[first + i, left + j] / epsilon < _LOG_NEGLIGIBLE:
                    return True
    return False


@njit(nogil=True, cache=True, error_model="numpy", fastmath=True)  # all finite here, and only so are maxima vectorised
def _cut(kernel, first, left, m, block, log_alpha, log_beta, largest):
    """Copy a block, its rows and then its columns scaled by alpha and beta to a largest entry of 1; 0 at padding."""
    n = len(block)
    for i in range(0, n, 4):  # four at a time; the last one again where n is no multiple of 4
        i0, i1, i2, i3 = min(i, n - 1), min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
        x0, x1 = kernel[first + i0, left : left + m], kernel[first + i1, left : left + m]
        x2, x3 = kernel[first + i2, left : left + m], kernel[first + i3, left : left + m]
        m0 = m1 = m2 = m3 = np.float32(_TINY)
        for j in range(m):
            m0, m1, m2, m3 = max(m0, x0[j]), max(m1, x1[j]), max(m2, x2[j]), max(m3, x3[j])
        log_alpha[i0], log_alpha[i1], log_alpha[i2], log_alpha[i3] = m0, m1, m2, m3
    largest[:] = _TINY  # a row or column that is lost altogether shows as one that misses mass
    for i in range(n):
        row, source = block[i], kernel[first + i, left : left + m]
        alpha = 1 / log_alpha[i]
        for j in range(m):
            row[j] = source[j] * alpha
            largest[j] = max(largest[j], row[j])
        row[m:] = 0
        log_alpha[i] = -math.log(log_alpha[i])
    for j in range(m):
        log_beta[j] = -math.log(largest[j])
        largest[j] = 1 / largest[j]
    for i in range(n):
        row = block[i]
        for j in range(m):
            row[j] *= largest[j]


@_compiled
def _build(cost, first, left, m, epsilon, block, log_alpha, log_beta):
    """What `_cut` makes of `exp(-C / eps)`, from C itself: minima are subtracted before the exponential."""
    n = len(block)
    log_beta[:] = np.inf
    for i in range(n):
        log_alpha[i] = cost[first + i, left : left + m].min() / epsilon
        for j in range(m):
            log_beta[j] = min(log_beta[j], cost[first + i, left + j] / epsilon - log_alpha[i])
    for i in range(n):
        for j in range(m):
            block[i, j] = math.exp(log_alpha[i] + log_beta[j] - cost[first + i, left + j] / epsilon)
        block[i, m:] = 0


@_compiled
def _solve(block, m, u, v, sums, column_sums, limit, epsilon, offset, tolerance, max_iterations):
    """Returns the dual value, the iterations, the marginal error and what became of the pair."""
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
        if early:  # the exact columns were for the dual value; the over-relaxed ones converge faster
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


@_compiled
def _choose_relaxation(eighths, rate):
    """SOR's optimum 2 / (1 + sqrt(1 - k)), rounded; k: the plain rate that would have given `rate` under omega."""
    omega = 1 + eighths / 8
    if not omega - 1 < rate < 1:  # at omega - 1 or below it is beyond its optimum, and all is well
        return eighths
    plain = min((rate + omega - 1) ** 2 / (rate * omega**2), 1.0)
    optimum = 2 / (1 + math.sqrt(1 - plain))
    return min(max(round((optimum - 1) * 8), _LEAST_EIGHTHS), _MOST_EIGHTHS)


@_compiled
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
        _add_rows(block, u, column_sums, first, last)
    b = np.float32(1 / m)
    for j in range(m):
        column_sums[j] = b / (v[j] * column_sums[j])
        v[j] *= column_sums[j]
    _over_relax(v[:m], column_sums[:m], column_eighths)


@_compiled
def _over_relax(scaling, ratio, eighths):
    """`scaling *= ratio ** (eighths / 8)`, by square roots; what over-relaxation adds to `scaling *= ratio`."""
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


@_compiled
def _row_error(block, u, v, sums):
    """`sum_i |sum_j plan_ij - 1/n|`."""
    _row_sums(block, 0, v, sums, 0, len(block))
    a = np.float32(1 / len(block))
    total = np.float32(0)
    for i in range(len(block)):
        total += abs(u[i] * sums[i] - a)
    return total


@_compiled
def _row_sums(kernel, left, v, sums, first, last):
    """`sum_j K_ij v_j` of the rows [first, last) over the columns from `left` on, four rows at a time."""
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


@_compiled
def _add_rows(block, u, column_sums, first, last):
    """Add `sum_i u_i K_ij` of the rows [first, last), four at a time."""
    width = block.shape[1]
    for i in range(first, last - 3, 4):
        x0, x1, x2, x3 = block[i], block[i + 1], block[i + 2], block[i + 3]
        u0, u1, u2, u3 = u[i], u[i + 1], u[i + 2], u[i + 3]
        for j in range(width):
            column_sums[j] += u0 * x0[j] + u1 * x1[j] + u2 * x2[j] + u3 * x3[j]
    for i in range(last - (last - first) % 4, last):
        for j in range(width):
            column_sums[j] += u[i] * block[i, j]


@_compiled
def _mean_log(scaling, count):
    """Eight at a time: the product of eight float32 numbers fits into a float64."""
    total = 0.0
    for first in range(0, count, 8):
        product = 1.0
        for i in range(first, min(first + 8, count)):
            product *= scaling[i]
        total += math.log(product)
    return total / count


@_compiled
def row_span_sums(kernel, starts, sizes, scalings, lost, logs):
    """`log sum_i (u_ki (K_ij + lost) + tiny)` over the rows i of each span k, for all columns j: fills (K, T_b). Never
    below the sum with the entries that the kernel dropped (`lost` or less), and the products that underflow.
    """
    total = _buffer(kernel.shape[1])
    for k in range(len(starts)):
        total[:] = scalings[k].sum() * lost + sizes[k] * _TINY
        _add_rows(kernel[starts[k] : starts[k] + sizes[k]], scalings[k], total, 0, sizes[k])
        for j in range(len(total)):
            logs[k, j] = math.log(total[j])


@_compiled
def column_span_sums(kernel, starts, sizes, scalings, lost, logs):
    """`log sum_j (v_lj (K_ij + lost) + tiny)` over the columns j of each span l, for all rows i: fills (K, T_a)."""
    total = _buffer(len(kernel))
    for k in range(len(starts)):
        v = scalings[k, : sizes[k]]
        _row_sums(kernel, starts[k], v, total, 0, len(kernel))
        beyond = v.sum() * lost + sizes[k] * _TINY
        for i in range(len(total)):
            logs[k, i] = math.log(total[i] + beyond)
