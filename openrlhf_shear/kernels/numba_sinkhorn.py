"""Sinkhorn for a CPU: one span pair at a time on each of torch's threads, its kernel in the cache.

The kernel `exp((shift - C) / eps)` is made once for the whole tile, and every block is cut out of it: float32 spans
a range of 158 eps, more than hidden states do at the epsilons in use. A pair whose block leaves it gets a kernel of its
own with its minima subtracted before the exponential, and if its scalings drift as well, the torch solver.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from openrlhf_shear.kernels import numba_loops as loops
from openrlhf_shear.ot.geometry import Tokens
from openrlhf_shear.ot.sinkhorn import SinkhornResult
from openrlhf_shear.ot.sinkhorn_pairs import FastPairs
from openrlhf_shear.ot.tiles import Tile

_LOG_RANGE = 82.0  # log of the largest kernel entry; float32 holds 88, and the sum of a row of 300 is e^6 more
_LOG_FLOOR = -76.0  # entries below are 0: they and their products would be denormal numbers, which are slow
_LOG_SUM = 80.0  # of the largest product that a bound sums up
_LOG_SCALING = 60.0  # the scalings of a bound stay within e^+-60; any potentials give a bound
# What a thread works through at a time: about a millisecond, beside which starting a task is nothing.
_SOLVED_ENTRIES = 2**18  # of pairs' blocks
_BOUNDED_ROWS, _BOUNDED_COLUMNS = 64, 512  # of the kernel: these stay in the cache while the spans go over them
_FEW_ENTRIES = 2**20  # less is done at once, in the thread that asks: on a busy machine another one comes late
_DENORMAL = np.float32(1e-40)


class NumbaSinkhorn(FastPairs):
    """`W_eps` of the span pairs of a tile on a CPU."""

    def __init__(self, tile: Tile, epsilon: float):
        super().__init__(tile, epsilon)
        self._rows, self._columns = ((s.starts.numpy(), s.sizes.numpy()) for s in (tile.a, tile.b))
        np.finfo(np.float32), np.finfo(np.float64)  # looked up once a process: not by a thread of the pool
        # Kernel products may be denormal: the pool's threads flush them, and this one while it does their work.
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads, initializer=torch.set_flush_denormal, initargs=(True,))
        self._make_kernel(Tokens(tile.a.tokens), Tokens(tile.b.tokens), epsilon * tile.a.scale)

    def _make_kernel(self, x: Tokens, y: Tokens, scale: float) -> None:
        """The kernel (T_a, T_b), in place of the products that it is made of where these are float32, and its largest
        entries; `scale` is eps in the units of the tokens.
        """
        highest = (x.largest**0.5 + y.largest**0.5) / scale  # no cost is above it
        self._shift = min(highest / 2, _LOG_RANGE)
        kernel = torch.from_numpy(np.empty((len(x), len(y)), np.float32))  # NumPy asks for huge pages
        with torch.autocast("cpu", enabled=False):
            products = torch.mm(x.factor, y.factor.T, out=kernel if x.factor.dtype == kernel.dtype else None)
        tokens = x.factor.numpy(), y.factor.numpy(), x.squared.numpy(), y.squared.numpy()
        row_max, column_max = np.zeros(len(x), np.float32), np.zeros((self._threads, len(y)), np.float32)

        def task(part: slice) -> int:
            return loops.make_kernel(
                products.numpy(), part.start, part.stop, *tokens, x.cancellation,
                self._shift, scale, _LOG_FLOOR, kernel.numpy(), row_max, column_max[part.start // size],
            )  # fmt: skip

        size = -(-len(x) // self._threads)
        self._finite = math.isfinite(highest)
        self._floored = self._finite and sum(self._in_parallel(task, len(x), size, len(y))) > 0
        self._kernel, self._largest = kernel.numpy(), (row_max, column_max.max(0))

    def _solve(
        self, pairs: torch.Tensor, limits: torch.Tensor, tolerance: float, max_iterations: int
    ) -> tuple[SinkhornResult, torch.Tensor]:
        how = tolerance, max_iterations
        if not self._finite:
            return self._solve_from(self.tile.cost.numpy(), True, pairs, limits, *how)
        result, flagged = self._solve_from(self._kernel, False, pairs, limits, *how)
        again = torch.nonzero(flagged)[:, 0]
        if self._floored and len(again):
            finer, flagged[again] = self._solve_from(self.tile.cost.numpy(), True, pairs[again], limits[again], *how)
            result.put(again, finer)
        return result, flagged

    def _solve_from(
        self, source: np.ndarray, costs: bool, pairs, limits, tolerance, max_iterations
    ) -> tuple[SinkhornResult, torch.Tensor]:
        shift, floor = (0.0, 0.0) if costs else (self._shift * self.epsilon, _LOG_FLOOR)
        count, which, limit = len(pairs), pairs.numpy(), limits.numpy()
        value, error = np.empty(count, np.float32), np.empty(count, np.float32)
        f = np.zeros((count, self._rows[1].max()), np.float32)
        g = np.zeros((count, self._columns[1].max()), np.float32)
        iterations, status = np.empty(count, np.int64), np.empty(count, np.int64)

        def task(part: slice) -> None:
            loops.solve_pairs(
                source, costs, *self._rows, *self._columns, which[part], limit[part], self.epsilon, shift, floor,
                tolerance, max_iterations, value[part], f[part], g[part], iterations[part], error[part], status[part],
            )  # fmt: skip

        entries = f.shape[1] * g.shape[1]
        self._in_parallel(task, count, _SOLVED_ENTRIES // entries, _FEW_ENTRIES // _SOLVED_ENTRIES * entries)
        ends = (status == end for end in (loops.CONVERGED, loops.DROPPED, loops.FLAGGED))
        *solved, flagged = (torch.from_numpy(x) for x in (value, f, g, iterations, error, *ends))
        return SinkhornResult(*solved), flagged

    def _dual_bounds(self, potentials: torch.Tensor | None, transposed: bool) -> torch.Tensor:
        if not self._finite:
            return super()._dual_bounds(potentials, transposed)
        spans, (starts, sizes) = (self._columns, self._rows) if transposed else (self._rows, self._columns)
        mean, scalings = self._scalings(potentials, spans, self._largest[transposed])
        logs = np.empty((len(mean), self._kernel.shape[0 if transposed else 1]), np.float32)
        of_others = np.empty((len(mean), len(starts)))
        sums, most = (loops.column_span_sums, _BOUNDED_ROWS) if transposed else (loops.row_span_sums, _BOUNDED_COLUMNS)
        lost = math.exp(_LOG_FLOOR) if self._floored else 0.0

        def task(part: slice) -> None:
            sums(self._kernel, part.start, *spans, scalings, lost, logs[:, part])

        def average(part: slice) -> None:
            loops.span_means(logs[part], starts, sizes, of_others[part])

        self._in_parallel(task, logs.shape[1], most, int(spans[1].sum()))
        self._in_parallel(average, len(mean), len(mean), logs.shape[1])
        return torch.from_numpy((mean[:, None] + self.epsilon * (self._shift - of_others)).astype(np.float32))

    def _scalings(self, potentials: torch.Tensor | None, spans, largest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The potentials' means (K,) and the scalings `a exp(f / eps)` (K, n), 0 at padding, up to a factor each: any f
        gives a bound, so it is clipped to where no sum can overflow. `largest` are the tokens' largest kernel entries.
        """
        starts, sizes = spans
        there = np.arange(sizes.max()) < sizes[:, None]
        if potentials is None:
            return np.zeros(len(sizes)), (there / sizes[:, None]).astype(np.float32)
        largest = largest[np.minimum(starts[:, None] + np.arange(sizes.max()), len(largest) - 1)]
        f = potentials.double().numpy()
        f = (f - (f * there).sum(1, keepdims=True) / sizes[:, None]) / self.epsilon
        highest = np.minimum(_LOG_SCALING, _LOG_SUM - np.log(np.maximum(largest, loops.TINY, dtype=np.float64)))
        f = np.minimum(np.maximum(f, -_LOG_SCALING), highest) * there
        return self.epsilon * f.sum(1) / sizes, (there * np.exp(f) / sizes[:, None]).astype(np.float32)

    def _in_parallel(self, task: Callable[[slice], None], count: int, most: int, entries: int) -> list:
        """`task` on slices of `count` items of that many entries each, at most `most` items at a time: on the pool's
        threads or, where there is little to do, in this one.
        """
        size = max(1, min(most, -(-count // self._threads)))
        slices = (slice(first, min(first + size, count)) for first in range(0, count, size))
        if count * entries > _FEW_ENTRIES:
            return list(self._pool.map(task, slices))
        flushed = bool(_DENORMAL * np.float32(1.0) == 0.0)
        torch.set_flush_denormal(True)
        try:
            return [task(part) for part in slices]
        finally:
            torch.set_flush_denormal(flushed)
