"""Triton kernel of `triton_sinkhorn`: one program per span pair, whose kernel matrix stays on chip throughout.

The plan of a pair's block is `u_i K_ij v_j`. Padding has an infinite cost, so K is exactly 0 there, as are u, v, f, g.
Tables of spans are those of `triton_bounds`.

Legend: P pairs, n/m tokens of a pair's spans, u/v scalings of rows and columns.
"""

import triton
import triton.language as tl

from openrlhf_shear.kernels.triton_bounds import CORNER, SIZE, START, WIDTH, load_fact

CONVERGED, DROPPED, UNCONVERGED, FLAGGED, GOING = (tl.constexpr(code) for code in range(5))
# Between two checks, scalings may leave e^+-30 without harm (float32 holds e^88). A scaling beyond it at a check is
# folded into the potentials. A kernel entry lost to the range of float32 (below e^-87) then has a density below e^-27.
_DRIFT = tl.constexpr(30.0)
# Blocks have the shape (m / 16, n, 16), not (n, m). Triton distributes the last axes first, so that a thread has 8 x 8
# entries of 128 x 128 rather than 64 x 1. A sum over columns then takes 4 shuffles for each of 8 rows, and `_relax`
# works on 8 rows and 8 columns. An iteration is 520 instructions a thread instead of 1900 (sm_90, 8 warps).
_LANES = tl.constexpr(16)
_EIGHTHS, _MOST_EIGHTHS = tl.constexpr(4), tl.constexpr(7)  # over-relaxation omega - 1, in eighths: first and largest
_LOG2_E, _LN_2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)  # on a CPU; PTX needs a GPU


@triton.jit
def _log2(x):
    """Return log2(x) by one instruction, -inf for numbers below 2^-126.

    PTX promises an absolute error of 2^-22 between 1/2 and 2, and a relative error of 2^-22 elsewhere.
    """
    if _INTERPRETED:
        return tl.log2(x)
    else:
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def _exp2(x):
    """Return 2 ** x by one instruction: a relative error of 2^-22 at most, 0 for results below 2^-126."""
    if _INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def _relax(scaling, sums, size, there, eighths):
    """Return `scaling * (a / (scaling * sums)) ** omega`, a = 1 / size, omega = 1 + eighths / 8; padding is unchanged.

    Every thread computes the power for each of its rows and columns, so its cost counts: two instructions.
    """
    ratio = tl.where(there, scaling * sums * size, 1.0)
    return scaling * _exp2(-(1 + eighths / 8.0) * _log2(ratio))


@triton.jit
def _choose_omega(eighths, rate):
    """Choose SOR's optimum 2 / (1 + sqrt(1 - k)), rounded; k is the plain rate that explains the observed `rate`."""
    beyond = eighths / 8.0  # omega - 1
    plain = (rate + beyond) * (rate + beyond) / (rate * (1 + beyond) * (1 + beyond))
    optimum = 2 / (1 + tl.sqrt(1 - tl.minimum(plain, 1.0)))
    rounded = tl.minimum(tl.maximum((optimum * 8 - 7.5).to(tl.int32), _EIGHTHS), _MOST_EIGHTHS)
    slow = (rate > beyond) & (rate < 1)  # at a rate of omega - 1 or less, omega is at or above its optimum
    return tl.where(slow, rounded, eighths)


@triton.jit
def _status(dual, error, limit, tolerance, first, far, out_of_time):
    """Return a pair's status at a check. After a drift, entries of K that matter may be 0: nothing is concluded."""
    status = tl.where(out_of_time, UNCONVERGED, GOING)
    status = tl.where(error <= tolerance, CONVERGED, status)
    status = tl.where(dual > limit, DROPPED, status)
    status = tl.where(far, tl.where(out_of_time, FLAGGED, GOING), status)
    finite = (dual > float("-inf")) & (dual < float("inf")) & (first | (error < float("inf")))  # False for NaN
    return tl.where(finite, status, FLAGGED)


@triton.jit
def _costs(corner, width, i, j, n, m):
    """Load the block (BLOCK_M / _LANES, BLOCK_N, _LANES) that begins at `corner`, infinite at padding."""
    i, j = i[None, :, None], j[:, None, :]
    return tl.load(corner + i * width + j, mask=(i < n) & (j < m), other=float("inf"))


@triton.jit
def _over_columns(block, v):
    return tl.sum(tl.sum(block * v[:, None, :], 0), 1)


@triton.jit
def _over_rows(block, u):
    return tl.sum(block * u[None, :, None], 1)


@triton.jit
def _logs(densities, there, epsilon):
    """Return what scalings with these densities (u / a) add to the potentials, 0 at padding."""
    return _log2(tl.where(there, densities, 1.0)) * (epsilon * _LN_2)


@triton.jit(do_not_specialize=["row_count", "column_count", "max_iterations", "f_width", "g_width"])
def solve_pairs(
    cost, pairs, rows_table, row_count, columns_table, column_count, limits,
    epsilon, tolerance, max_iterations, value, f_out, f_width, g_out, g_width, iterations, marginal_error, status_out,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Solve the pair `pairs[program]` of (P, 2); the outputs are (P,), (P, f_width) and (P, g_width)."""
    p = tl.program_id(0).to(tl.int64)
    of_rows, of_columns = tl.load(pairs + 2 * p), tl.load(pairs + 2 * p + 1)
    n = load_fact(rows_table, row_count, SIZE, of_rows).to(tl.int32)
    m = load_fact(columns_table, column_count, SIZE, of_columns).to(tl.int32)
    width = load_fact(rows_table, row_count, WIDTH, of_rows).to(tl.int32)
    corner = cost + load_fact(rows_table, row_count, CORNER, of_rows)
    corner += load_fact(columns_table, column_count, START, of_columns)
    limit = tl.load(limits + p)
    i = tl.arange(0, BLOCK_N)
    j = tl.arange(0, BLOCK_M // _LANES)[:, None] * _LANES + tl.arange(0, _LANES)[None, :]
    rows, columns = i < n, j < m
    a, b = tl.where(rows, 1.0 / n, 0.0), tl.where(columns, 1.0 / m, 0.0)

    costs = _costs(corner, width, i, j, n, m)
    f = tl.where(rows, tl.min(tl.min(costs, 0), 1), 0.0)
    g = tl.where(columns, tl.min(costs - f[None, :, None], 1), 0.0)
    eighths, done, status = tl.full((), _EIGHTHS, tl.int32), tl.full((), 0, tl.int32), tl.full((), GOING, tl.int32)
    dual, error = tl.full((), float("-inf"), tl.float32), tl.full((), float("inf"), tl.float32)
    # Each round builds K; without a drift of the scalings, there is a single round. A round loads the costs again, and
    # computes their addresses again: otherwise they would fill the registers that K needs.
    while tl.condition(status == GOING, disable_licm=True):
        exponent = f[None, :, None] + g[:, None, :] - _costs(corner, width, i, j, n, m)
        kernel = _exp2(exponent * (_LOG2_E / epsilon))
        u, v = a, b
        row_sums, column_sums = _over_columns(kernel, v), b
        far = status != GOING
        while (status == GOING) & (far == 0):
            # Check after 1, 2, 4 and 7 iterations, where most pairs are dropped, then after every 10. A check takes as
            # long as two iterations, and a rate shows only over some iterations.
            steps = tl.where(done < 2, 1, tl.where(done < 4, 2, tl.where(done < 10, 3, 10)))
            done += steps
            first = done < 10
            for step in range(steps):
                u = _relax(u, row_sums, n, rows, eighths)
                column_sums = _over_rows(kernel, u)
                # The error needs exact columns. The first checks skip them, as they would slow the start down.
                exact = (step == steps - 1) & (first == 0)
                v = _relax(v, column_sums, m, columns, tl.where(exact, 0, eighths))
                row_sums = _over_columns(kernel, v)
            # The dual value is that of the exact v = b / column_sums, even if v itself is over-relaxed.
            from_u, from_v = _logs(u * n, rows, epsilon), -_logs(column_sums, columns, epsilon)
            drift = tl.maximum(tl.max(tl.abs(from_u), 0), tl.max(tl.max(tl.abs(from_v), 1), 0))
            far = drift > _DRIFT * epsilon
            before_dual, before_error = dual, error
            dual = tl.sum(f + from_u, 0) / n + tl.sum(tl.sum(g + from_v, 1), 0) / m
            error = tl.where(first, float("inf"), tl.sum(tl.abs(u * row_sums - a), 0))
            status = _status(dual, error, limit, tolerance, first, far, (done >= max_iterations) & (first == 0))
            eighths = _choose_omega(eighths, _exp2(_log2(error / before_error) / steps))
            # Allow for the rounding of a dual value: otherwise a converged problem would seem to drop.
            eighths = tl.where((first == 0) & (dual < before_dual - 1e-6 * tl.abs(before_dual)), 0, eighths)
        f += _logs(u * n, rows, epsilon)
        g -= _logs(column_sums, columns, epsilon)

    tl.store(value + p, dual)
    tl.store(iterations + p, done)
    tl.store(marginal_error + p, error)
    tl.store(status_out + p, status)
    tl.store(f_out + p * f_width + i, f, mask=i < f_width)
    tl.store(g_out + p * g_width + j, g, mask=j < g_width)
