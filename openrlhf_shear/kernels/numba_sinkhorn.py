"""Sinkhorn for a CPU: one span pair at a time on each of torch's threads, its kernel in the cache.

The kernel `exp((shift - C) / eps)` is made once for the whole tile, and every block is cut out of it: float32 spans
a range of 160 eps, more than hidden states do at the epsilons in use. A pair that leaves it gets a kernel of its own
with its minima subtracted before the exponential, and if its scalings drift as well, the torch solver.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from openrlhf_shear.kernels import numba_loops as loops
from openrlhf_shear.ot.sinkhorn import SinkhornResult
from openrlhf_shear.ot.sinkhorn_pairs import FastPairs
from openrlhf_shear.ot.tiles import Tile

_LOG_RANGE = 86.0  # log of the largest kernel entry; float32 holds 88
_LOG_FLOOR = -76.0  # entries below are 0: they and their products would be denormal numbers, which are slow
_LOG_SUM = 80.0  # of the largest product that a bound sums up
_LOG_SCALING = 60.0  # the scalings of a bound stay within e^+-60; any potentials give a bound
# Kernel entries that a thread works through at a time: about a millisecond, beside which starting a task is nothing.
_SOLVED_ENTRIES, _BOUNDED_ENTRIES = 2**18, 2**22
_MADE_ENTRIES = 2**18  # of the kernel, while they are in the cache


class NumbaSinkhorn(FastPairs):
    """`W_eps` of the span pairs of a tile on a CPU."""

    def __init__(self, tile: Tile, epsilon: float):
        super().__init__(tile, epsilon)
        self._nearest = tile.cost.amin(1).numpy(), tile.cost.amin(0).numpy()
        low, high = float(self._nearest[0].min()), float(tile.cost.amax())
        self._shift = min((low + high) / 2, low + _LOG_RANGE * epsilon)
        self._floored = (high - self._shift) / epsilon > -_LOG_FLOOR
        kernel = torch.empty_like(tile.cost)
        rows = max(1, _MADE_ENTRIES // kernel.shape[1])
        for part, cost in zip(kernel.split(rows), tile.cost.split(rows), strict=True):
            torch.sub(self._shift, cost, out=part).div_(epsilon)
            if self._floored:
                part.masked_fill_(part < _LOG_FLOOR, -torch.inf)
            part.exp_()
        self._kernel = kernel.numpy()
        self._rows, self._columns = ((s.starts.numpy(), s.sizes.numpy()) for s in (tile.a, tile.b))
        np.finfo(np.float32), np.finfo(np.float64)  # looked up once a process: not by a thread of the pool
        # Kernel products may be denormal: the pool's threads flush them, and no other thread's mode is changed.
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads, initializer=torch.set_flush_denormal, initargs=(True,))

    def _solve(
        self, pairs: torch.Tensor, limits: torch.Tensor, tolerance: float, max_iterations: int
    ) -> tuple[SinkhornResult, torch.Tensor]:
        count, which, limit = len(pairs), pairs.numpy(), limits.numpy()
        value, error = np.empty(count, np.float32), np.empty(count, np.float32)
        f = np.zeros((count, self._rows[1].max()), np.float32)
        g = np.zeros((count, self._columns[1].max()), np.float32)
        iterations, status = np.empty(count, np.int64), np.empty(count, np.int64)

        def task(part: slice) -> None:
            loops.solve_pairs(
                self._kernel, self.tile.cost.numpy(), *self._rows, *self._columns, which[part], limit[part],
                self.epsilon, self._shift, tolerance, max_iterations,
                value[part], f[part], g[part], iterations[part], error[part], status[part],
            )  # fmt: skip

        self._in_parallel(task, count, _SOLVED_ENTRIES // (f.shape[1] * g.shape[1]))
        ends = (status == end for end in (loops.CONVERGED, loops.DROPPED, loops.FLAGGED))
        *solved, flagged = (torch.from_numpy(x) for x in (value, f, g, iterations, error, *ends))
        return SinkhornResult(*solved), flagged

    def _dual_bounds(self, potentials: torch.Tensor | None, transposed: bool) -> torch.Tensor:
        spans, others = (self._columns, self._rows) if transposed else (self._rows, self._columns)
        mean, scalings = self._scalings(potentials, spans, self._nearest[transposed])
        (starts, sizes), (other_starts, other_sizes) = spans, others
        logs = np.empty((len(starts), self._kernel.shape[0 if transposed else 1]))
        sums = loops.column_span_sums if transposed else loops.row_span_sums
        lost = np.exp(_LOG_FLOOR) if self._floored else 0.0

        def task(part: slice) -> None:
            sums(self._kernel, starts[part], sizes[part], scalings[part], lost, logs[part])

        self._in_parallel(task, len(starts), _BOUNDED_ENTRIES // (logs.shape[1] * scalings.shape[1]))
        running = np.cumsum(np.pad(logs, ((0, 0), (1, 0))), axis=1)
        of_others = (running[:, other_starts + other_sizes] - running[:, other_starts]) / other_sizes
        return torch.from_numpy((mean[:, None] + self._shift - self.epsilon * of_others).astype(np.float32))

    def _scalings(self, potentials: torch.Tensor | None, spans, nearest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The potentials' means (K,) and the scalings `a exp(f / eps)` (K, n), 0 at padding, up to a factor each: any f
        gives a bound, so it is clipped to where no sum can overflow.
        """
        starts, sizes = spans
        there = np.arange(sizes.max()) < sizes[:, None]
        if potentials is None:
            return np.zeros(len(sizes)), (there / sizes[:, None]).astype(np.float32)
        nearest = nearest[np.minimum(starts[:, None] + np.arange(sizes.max()), len(nearest) - 1)]
        f = potentials.double().numpy()
        f = (f - (f * there).sum(1, keepdims=True) / sizes[:, None]) / self.epsilon
        highest = np.minimum(_LOG_SCALING, _LOG_SUM + (nearest - self._shift) / self.epsilon)
        f = np.minimum(np.maximum(f, -_LOG_SCALING), highest) * there
        return self.epsilon * f.sum(1) / sizes, (there * np.exp(f) / sizes[:, None]).astype(np.float32)

    def _in_parallel(self, task: Callable[[slice], None], count: int, most: int) -> None:
        """`task` on slices of `count` items, on the pool's threads: at most `most` at a time, and all threads busy."""
        size = max(1, min(most, -(-count // self._threads)))
        list(self._pool.map(task, (slice(first, first + size) for first in range(0, count, size))))
