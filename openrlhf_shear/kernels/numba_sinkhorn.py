"""Sinkhorn for a CPU: one span pair at a time on each of torch's threads, its kernel in the cache.

The kernel `exp((shift - C) / eps)` is made once for the whole tile, and every block is cut out of it. float32 covers
costs over a range of 158 eps, more than hidden states need at the epsilons in use. A pair whose block leaves this range
gets a separate kernel, with its minima subtracted before the exponential. If its scalings drift too, the torch solver
takes it.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from openrlhf_shear.kernels import numba_loops as loops
from openrlhf_shear.kernels import numba_matrix as matrix
from openrlhf_shear.transport.geometry import Spans, Tokens, products
from openrlhf_shear.transport.sinkhorn import MAX_ITERATIONS, TOLERANCE, SinkhornResult
from openrlhf_shear.transport.sinkhorn_pairs import SinkhornPairs, unlimited
from openrlhf_shear.transport.tiles import Tile, tiles

_LOG_RANGE = 82.0  # log of the largest kernel entry
_LOG_TOTAL = 87.0  # log of the largest sum of a span's entries: the sum and its reciprocal are normal float32 numbers
_LOG_FLOOR = -76.0  # smaller entries become 0: they and their products would be denormal numbers, which are slow
_LOG_SUM = 80.0  # log of the largest product that a bound sums up
_LOG_SCALING = 60.0  # the scalings of a bound stay within e^+-60; any potentials give a bound
# The size of a task is about a millisecond of work, so that starting it costs little in comparison.
_SOLVED_ENTRIES = 2**18  # entries of pairs' blocks in a task
_PRODUCT_ROWS = 512  # of a thread's product, which is still in the cache when its entries become those of the kernel
_BOUNDED_ROWS, _BOUNDED_COLUMNS = 64, 512  # kernel rows or columns in a task: they stay in the cache for all spans
_FIRST_SPANS = 16  # row spans in a task of the first bounds: the sums of their parts stay in the cache
FEW_ENTRIES = 2**20  # less work runs in the calling thread: on a busy machine another thread starts late
_DENORMAL = np.float32(1e-40)


class NumbaSinkhorn(SinkhornPairs):
    """`W_eps` of the span pairs of a tile on a CPU."""

    def __init__(self, tile: Tile, epsilon: float):
        super().__init__(tile, epsilon)
        self._rows, self._columns = ((s.starts.numpy(), s.sizes.numpy()) for s in (tile.a, tile.b))
        np.finfo(np.float32), np.finfo(np.float64)  # fills NumPy's cache here, rather than in a thread of the pool
        # Kernel products may be denormal: the pool's threads flush them to 0, and this thread does while it works.
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads, initializer=torch.set_flush_denormal, initargs=(True,))
        self._make_kernel(Tokens(tile.a.tokens), Tokens(tile.b.tokens), epsilon * tile.a.scale)

    def _make_kernel(self, x: Tokens, y: Tokens, scale: float) -> None:
        """Make the kernel (T_a, T_b), and the largest entries of its rows and columns, from some rows' products each.

        `scale` is eps in the units of the tokens.
        """
        highest = (x.largest**0.5 + y.largest**0.5) / scale  # an upper bound of the costs, in units of eps
        longest = max(self._rows[1].max(), self._columns[1].max())
        self._shift = min(highest / 2, _LOG_RANGE, _LOG_TOTAL - math.log(longest))
        self._finite, self._floored = math.isfinite(highest), False
        self._kernel = np.empty((len(x), len(y)), np.float32)  # unlike torch, NumPy requests huge pages
        tokens = x.factor.numpy(), y.factor.numpy(), x.squared.numpy(), y.squared.numpy()
        row_max, column_max = np.zeros(len(x), np.float32), np.zeros((self._threads, len(y)), np.float32)

        def fill(first: int, inner: np.ndarray, part: slice) -> bool:
            return matrix.make_kernel(
                inner[part], first + part.start, *tokens, x.cancellation, self._shift, scale, _LOG_FLOOR,
                self._kernel, row_max, column_max[part.start * self._threads // len(inner)],
            )  # fmt: skip

        step = _PRODUCT_ROWS * self._threads
        for first in range(0, len(x) if self._finite else 0, step):
            with torch.autocast("cpu", enabled=False):
                inner = products(x.factor[first : first + step], y.factor).numpy()
            floored = self._in_parallel(partial(fill, first, inner), len(inner), len(inner), len(y))
            self._floored |= any(floored)
        self._largest = row_max, column_max.max(0)

    def solve(
        self,
        pairs: torch.Tensor,
        limits: torch.Tensor | None = None,
        tolerance: float = TOLERANCE,
        max_iterations: int = MAX_ITERATIONS,
    ) -> SinkhornResult:
        limits, how = unlimited(pairs) if limits is None else limits, (tolerance, max_iterations)
        result, flagged = self._solve_from(self._finite, pairs, limits, *how)
        if self._finite and self._floored and len(again := torch.nonzero(flagged)[:, 0]):
            finer, flagged[again] = self._solve_from(False, pairs[again], limits[again], *how)
            result.put(again, finer)
        if len(again := torch.nonzero(flagged)[:, 0]):  # pairs that leave the range of float32
            result.put(again, super().solve(pairs[again], limits[again], *how))
        return result

    def _solve_from(
        self, kernel: bool, pairs, limits, tolerance, max_iterations
    ) -> tuple[SinkhornResult, torch.Tensor]:
        """Solve by the tile's kernel, or by its costs; the second result, (P,) bool, flags pairs for the reference."""
        source = self._kernel if kernel else self.tile.cost.numpy()
        shift, floor = (self._shift * self.epsilon, _LOG_FLOOR) if kernel else (0.0, 0.0)
        count, which, limit = len(pairs), pairs.numpy(), limits.numpy()
        value, error = np.empty(count, np.float32), np.empty(count, np.float32)
        f = np.zeros((count, self._rows[1].max()), np.float32)
        g = np.zeros((count, self._columns[1].max()), np.float32)
        iterations, status = np.empty(count, np.int64), np.empty(count, np.int64)

        def task(part: slice) -> None:
            loops.solve_pairs(
                source, not kernel, *self._rows, *self._columns, which[part], limit[part], self.epsilon, shift, floor,
                tolerance, max_iterations, value[part], f[part], g[part], iterations[part], error[part], status[part],
            )  # fmt: skip

        entries = f.shape[1] * g.shape[1]
        self._in_parallel(task, count, _SOLVED_ENTRIES // entries, FEW_ENTRIES // _SOLVED_ENTRIES * entries)
        ends = (status == end for end in (loops.CONVERGED, loops.DROPPED, loops.FLAGGED))
        *solved, flagged = (torch.from_numpy(x) for x in (value, f, g, iterations, error, *ends))
        return SinkhornResult(*solved), flagged

    def _first_bounds(self) -> torch.Tensor:
        if not self._finite:
            return super()._first_bounds()
        (ends, first, last), columns = (tuple(map(torch.Tensor.numpy, s.parts())) for s in (self.tile.a, self.tile.b))
        sizes, widest = self._columns[1], self._columns[1].max()
        values = np.empty((len(first), len(sizes)), np.float32)
        lost = math.exp(_LOG_FLOOR) if self._floored else 0.0

        def task(part: slice) -> None:
            begin, end = first[part][0], last[part][-1]
            of_parts = ends[begin : end + 1]
            shape = end - begin, len(sizes)
            logs, inverse, sums = np.empty(shape), np.empty(shape), np.empty((*shape, widest), np.float32)
            rows = self._kernel[of_parts[0] : of_parts[-1]]
            matrix.part_sums(rows, of_parts - of_parts[0], *columns, *self._columns, logs, inverse, sums)
            which = first[part] - begin, last[part] - begin, self._rows[1][part]
            matrix.first_values(*which, sizes, logs, inverse, sums, lost, values[part])

        room = self.tile.max_bytes // (4 * len(sizes) * widest * self._threads) - int((last - first).max())
        self._in_parallel(task, len(first), max(1, min(room, _FIRST_SPANS)), self._kernel.size // len(first))
        return torch.from_numpy(self.epsilon * (np.float32(self._shift) + values))

    def _dual_bounds(self, potentials: torch.Tensor, transposed: bool) -> torch.Tensor:
        if not self._finite:
            return super()._dual_bounds(potentials, transposed)
        spans, (starts, sizes) = (self._columns, self._rows) if transposed else (self._rows, self._columns)
        mean, scalings = self._scalings(potentials, spans, self._largest[transposed])
        logs = np.empty((len(mean), self._kernel.shape[0 if transposed else 1]), np.float32)
        of_others = np.empty((len(mean), len(starts)))
        sums, most = (loops.column_span_sums, _BOUNDED_ROWS) if transposed else (loops.row_span_sums, _BOUNDED_COLUMNS)
        lost = math.exp(_LOG_FLOOR) if self._floored else 0.0

        def task(part: slice) -> None:
            sums(self._kernel, part.start, part.stop, *spans, scalings, lost, logs)

        self._in_parallel(task, logs.shape[1], most, int(spans[1].sum()))
        loops.span_means(logs, starts, sizes, of_others)
        return torch.from_numpy((mean[:, None] + self.epsilon * (self._shift - of_others)).astype(np.float32))

    def _scalings(self, potentials: torch.Tensor, spans, largest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the potentials' means (K,) and the scalings `a exp(f / eps)` (K, n), 0 at padding.

        Each span's scalings are up to a factor. Any f gives a bound, so f is clipped until no sum can overflow.
        `largest` holds the largest kernel entry of each token.
        """
        starts, sizes = spans
        real = np.arange(sizes.max()) < sizes[:, None]
        largest = largest[np.minimum(starts[:, None] + np.arange(sizes.max()), len(largest) - 1)]
        f = potentials.double().numpy()
        f = (f - (f * real).sum(1, keepdims=True) / sizes[:, None]) / self.epsilon
        highest = np.minimum(_LOG_SCALING, _LOG_SUM - np.log(np.maximum(largest, loops.TINY, dtype=np.float64)))
        f = np.minimum(np.maximum(f, -_LOG_SCALING), highest) * real
        return self.epsilon * f.sum(1) / sizes, (real * np.exp(f) / sizes[:, None]).astype(np.float32)

    def _in_parallel(self, task: Callable[[slice], None], count: int, most: int, entries: int) -> list:
        """Run `task` on slices of `count` items, at most `most` items in a slice, and return the results in order.

        An item has `entries` entries. The pool's threads run the slices; if there is little work, this thread does.
        """
        size = max(1, min(most, -(-count // self._threads)))
        slices = (slice(first, min(first + size, count)) for first in range(0, count, size))
        if count * entries > FEW_ENTRIES:
            return list(self._pool.map(task, slices))
        flushed = bool(_DENORMAL * np.float32(1.0) == 0.0)
        torch.set_flush_denormal(True)
        try:
            return [task(part) for part in slices]
        finally:
            torch.set_flush_denormal(flushed)


def compile_loops() -> None:
    """Compile all loops, which takes some 15 processor seconds, or read them from numba's cache."""
    a, b = (Spans(torch.eye(9, 4) + side, torch.tensor([0, 4]), torch.tensor([4, 5])) for side in range(2))
    tile = next(tiles(a, b, 2**20))
    pairs = NumbaSinkhorn(tile, 0.1)
    pairs.solve(tile.all_pairs())
    pairs.bounds()
    pairs.bounds(torch.zeros(2, 5), torch.zeros(2, 5))
