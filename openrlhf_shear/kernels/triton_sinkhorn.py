"""Sinkhorn for a CUDA device: one program per span pair, whose kernel matrix stays on chip throughout."""

from contextlib import nullcontext

import torch
import triton

from openrlhf_shear.config.spec import TRITON_WINDOW
from openrlhf_shear.kernels import triton_first, tuning
from openrlhf_shear.kernels import triton_kernels as kernels
from openrlhf_shear.transport.sinkhorn import SinkhornResult
from openrlhf_shear.transport.sinkhorn_pairs import FastPairs
from openrlhf_shear.transport.tiles import Tile

_SMALLEST_BLOCK = 16
_COLUMNS_A_PROGRAM = 64  # in `span_log_sums`


class TritonSinkhorn(FastPairs):
    """`W_eps` of the span pairs of a tile on a CUDA device. ValueError: a span is longer than `MAX_WINDOW` tokens."""

    MAX_WINDOW = TRITON_WINDOW  # a kernel of 128 x 128 float32 takes a quarter of a multiprocessor's registers

    def __init__(self, tile: Tile, epsilon: float):
        super().__init__(tile, epsilon)
        self._longest = tuple(int(spans.sizes.max()) for spans in (tile.a, tile.b))
        if max(self._longest) > self.MAX_WINDOW:
            raise ValueError(
                f"the triton backend takes spans of at most {self.MAX_WINDOW} tokens: got {max(self._longest)}; use "
                f"credit.backend torch, or a shear.window of at most {self.MAX_WINDOW}"
            )
        device = tile.cost.device
        self._rows, self._columns = ((s.starts.to(device), s.sizes.to(device)) for s in (tile.a, tile.b))

    def _solve(
        self, pairs: torch.Tensor, limits: torch.Tensor, tolerance: float, max_iterations: int
    ) -> tuple[SinkhornResult, torch.Tensor]:
        cost, count = self.tile.cost, len(pairs)
        value, error = cost.new_empty(count), cost.new_empty(count)
        f, g = (cost.new_empty(count, width) for width in self._longest)
        iterations, status = (torch.empty_like(value, dtype=torch.int64) for _ in range(2))
        block_n, block_m = (_block(width) for width in self._longest)
        where = pairs.contiguous()
        with _on(cost.device):
            kernels.solve_pairs[(count,)](
                cost, *cost.stride(), where, *self._rows, *self._columns, limits,
                self.epsilon, tolerance, max_iterations,
                value, f, f.shape[1], g, g.shape[1], iterations, error, status,
                BLOCK_N=block_n, BLOCK_M=block_m, **launch(block_n, cost.device),
            )  # fmt: skip
        ends = (kernels.CONVERGED, kernels.DROPPED, kernels.FLAGGED)
        converged, dropped, flagged = (status == code.value for code in ends)
        return SinkhornResult(value, f, g, iterations, error, converged, dropped), flagged

    def _first_bounds(self) -> torch.Tensor:
        cost, row_sizes, (starts, sizes) = self.tile.cost, self._rows[1], self._columns
        logs = self._span_log_sums(cost.new_zeros(len(sizes), self._longest[1]), transposed=True)
        ends, first, last = self.tile.a.parts()
        longest, width = int(ends.diff().max()), self._longest[1]
        bounds = cost.new_empty(len(row_sizes), len(sizes))
        room = self.tile.max_bytes // (4 * len(sizes) * width) - int((last - first).max())
        for which in torch.arange(len(first)).split(max(1, room)):
            begin, end = first[which[0]], last[which[-1]]
            sums = cost.new_empty(end - begin, len(sizes), width)
            parts = (torch.stack([first[which], last[which]]) - begin).to(cost.device)
            here, of_rows = ends[begin : end + 1].to(cost.device), row_sizes[which.to(cost.device)]
            with _on(cost.device):
                triton_first.part_sums[(len(sums), len(sizes))](
                    cost, *cost.stride(), here, starts, sizes, logs, len(cost), self.epsilon, sums, len(sizes), width,
                    BLOCK_N=_block(longest), BLOCK_M=_block(width), enable_fp_fusion=True,
                )  # fmt: skip
                triton_first.mean_logs[(len(which), len(sizes))](
                    parts, of_rows, sizes, sums, bounds[which[0] :], len(sizes), width, BLOCK_M=_block(width)
                )
        of_rows = self.tile.a.means(logs).T
        return (self.epsilon * (row_sizes.double().log()[:, None] - of_rows - bounds)).float()

    def _dual_bounds(self, potentials: torch.Tensor, transposed: bool) -> torch.Tensor:
        others = self.tile.a if transposed else self.tile.b
        sizes = (self._columns if transposed else self._rows)[1]
        f = potentials.masked_fill(torch.arange(potentials.shape[1], device=sizes.device) >= sizes[:, None], 0)
        logs = self._span_log_sums(f, transposed)
        mean = f.double().sum(1) / sizes
        conjugate = self.epsilon * (sizes.double().log()[:, None] - others.means(logs))
        return (mean[:, None] + conjugate).float()

    def _span_log_sums(self, f: torch.Tensor, transposed: bool) -> torch.Tensor:
        """Return `log sum_i exp((f_ki - C_ij) / eps)` over the tokens i of each span k, (K, T) float32."""
        cost = self.tile.cost.T if transposed else self.tile.cost
        starts, sizes = self._columns if transposed else self._rows
        logs = cost.new_empty(len(sizes), cost.shape[1])
        with _on(cost.device):
            kernels.span_log_sums[(len(sizes), triton.cdiv(cost.shape[1], _COLUMNS_A_PROGRAM))](
                cost, *cost.stride(), cost.shape[1], starts, sizes, f, f.shape[1], self.epsilon, logs,
                BLOCK_N=_block(f.shape[1]), BLOCK_COLUMNS=_COLUMNS_A_PROGRAM, enable_fp_fusion=True,
            )  # fmt: skip
        return logs


def launch(rows: int, device: torch.device | None = None) -> dict:
    """Return the launch options of a solve whose blocks have `rows` rows; the defaults where `device` is not CUDA.

    Triton fuses multiplications and additions by default until 3.10.
    """
    on_cuda = device is not None and device.type == "cuda"
    chosen = tuning.options(tuning.architecture(device) if on_cuda else None, rows)
    warps = max(1, rows // chosen["rows_a_warp"])
    return {"num_warps": warps, "maxnreg": chosen["maxnreg"], "enable_fp_fusion": True}


def _block(width: int) -> int:
    return max(_SMALLEST_BLOCK, triton.next_power_of_2(width))


def _on(device: torch.device):
    """Make `device` current: Triton launches on the current device, which may differ from that of the costs."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
