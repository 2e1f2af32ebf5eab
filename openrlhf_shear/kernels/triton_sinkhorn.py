"""Sinkhorn for a CUDA device: one program per span pair, whose kernel matrix stays on chip throughout.

The costs of a tile are made in one pass over the products of its tokens. Several tiles share every launch.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import accumulate

import torch
import triton

from openrlhf_shear.config.spec import TRITON_WINDOW
from openrlhf_shear.kernels import triton_bounds
from openrlhf_shear.kernels import triton_kernels as kernels
from openrlhf_shear.kernels.triton_bounds import side_table
from openrlhf_shear.transport.copies import to_device
from openrlhf_shear.transport.geometry import Tokens, products
from openrlhf_shear.transport.sinkhorn import MAX_ITERATIONS, TOLERANCE, SinkhornResult
from openrlhf_shear.transport.sinkhorn_pairs import SinkhornPairs, unlimited
from openrlhf_shear.transport.tiles import Tile

# Launch of a solve, chosen from the machine code of Triton 3.7.1 for sm_90a; benchmarks/gpu_check.py compares it with
# others. A program of 128 x 128 with 168 registers moves 51 spilled registers in each iteration, and with 255 none. But
# then a multiprocessor holds 8 warps in place of 12.
LAUNCH: dict[str, int | None] = {"rows_a_warp": 32, "maxnreg": 255}
_SMALLEST_BLOCK = 16
_ACROSS = 64  # tokens of the other side in a program of `span_log_sums` and `join_parts`
_COST_ROWS, _COST_COLUMNS = 32, 32  # of a program of `finish_costs`; columns where parts are short
_NEAR_ENTRIES = 2**14  # differences of tokens that such a program holds at a time
_SHORTEST_PARTS = 8  # columns; the sums of shorter parts would save nothing


class TritonBatch:
    """`W_eps` of the span pairs of several tiles on a CUDA device: tile after tile, row-major.

    ValueError: a span is longer than `TRITON_WINDOW` tokens.
    """

    exact_bounds = False

    def __init__(self, tiles: Sequence[Tile], epsilon: float):
        self.tiles, self.epsilon = tiles, epsilon
        sides = [tile.a for tile in tiles], [tile.b for tile in tiles]
        self._longest = tuple(max(int(spans.sizes.max()) for spans in side) for side in sides)
        if max(self._longest) > TRITON_WINDOW:
            raise ValueError(
                f"the triton backend takes spans of at most {TRITON_WINDOW} tokens: got {max(self._longest)}; use "
                f"credit.backend torch, or a shear.window of at most {TRITON_WINDOW}"
            )
        self._shapes = [(len(tile.a.tokens), len(tile.b.tokens)) for tile in tiles]
        self._counts = tuple([len(spans) for spans in side] for side in sides)
        self._pairs = sum(a * b for a, b in zip(*self._counts, strict=True))
        self._device = tiles[0].device
        self._rows, self._columns = (
            self._table([(spans.starts, spans.sizes) for spans in side], columns)
            for side, columns in zip(sides, (False, True), strict=True)
        )
        self._cost = torch.empty(sum(a * b for a, b in self._shapes), dtype=torch.float32, device=self._device)
        self._make_costs()

    def solve(
        self,
        pairs: torch.Tensor,
        limits: torch.Tensor | None = None,
        tolerance: float = TOLERANCE,
        max_iterations: int = MAX_ITERATIONS,
    ) -> SinkhornResult:
        """Solve pairs as `SinkhornPairs.solve` does, which solves those that leave the range of float32."""
        limits = unlimited(pairs) if limits is None else limits
        cost, count, (rows, columns) = self._cost, len(pairs), (self._rows, self._columns)
        value, error = cost.new_empty(count), cost.new_empty(count)
        f, g = (cost.new_empty(count, width) for width in self._longest)
        iterations, status = (torch.empty_like(value, dtype=torch.int64) for _ in range(2))
        block_n, block_m = (_block(width) for width in self._longest)
        with _on(self._device):
            kernels.solve_pairs[(count,)](
                cost, pairs.contiguous(), rows, rows.shape[1], columns, columns.shape[1], limits,
                self.epsilon, tolerance, max_iterations,
                value, f, f.shape[1], g, g.shape[1], iterations, error, status,
                BLOCK_N=block_n, BLOCK_M=block_m, **launch(block_n),
            )  # fmt: skip
        ends = (kernels.CONVERGED, kernels.DROPPED, kernels.FLAGGED)
        converged, dropped, flagged = (status == code.value for code in ends)
        result = SinkhornResult(value, f, g, iterations, error, converged, dropped)
        again = torch.nonzero(flagged)[:, 0]
        if len(again):
            self._solve_again(again, pairs, limits, result, tolerance, max_iterations)
        return result

    def bounds(self, f: torch.Tensor | None = None, g: torch.Tensor | None = None) -> torch.Tensor:
        """Return lower bounds of all distances, (P,) float32. Arguments as in `SinkhornPairs.bounds`."""
        if f is g is None:
            return self.first_bounds()
        return torch.maximum(self.dual_bounds(f, transposed=False), self.dual_bounds(g, transposed=True))

    def first_bounds(self) -> torch.Tensor:
        """Return the dual values (P,) after one exact iteration (`transport.sinkhorn_pairs`)."""
        logs, parts = self._first_logs(), [tile.a.parts() for tile in self.tiles]
        zeros = torch.zeros(len(self._columns[0]), dtype=torch.float64, device=self._device)
        bounds = self._pair_bounds(self._columns, self._rows, logs, zeros)
        offsets = accumulate((len(ends) - 1 for ends, _, _ in parts), initial=0)
        of_tiles = [torch.stack(edges) + at for (_, *edges), at in zip(parts, offsets, strict=False)]
        ranges = torch.cat(of_tiles, 1)  # (2, K_a): the first part of each row span, and the last + 1
        table = self._table([(ends[:-1], ends.diff()) for ends, _, _ in parts], columns=False)
        longest = max(int(ends.diff().max()) for ends, _, _ in parts)
        width, most = self._longest[1], max(self._counts[1])
        first, last = ranges
        room = self.tiles[0].max_bytes // (4 * most * width) - int((last - first).max())
        on_device = to_device(ranges, self._device)
        for which in torch.arange(len(first)).split(max(1, room)):
            begin, end, row = int(first[which[0]]), int(last[which[-1]]), int(which[0])
            sums = self._cost.new_empty(end - begin, most, width)
            shared = most, width
            with _on(self._device):
                triton_bounds.part_sums[(end - begin, most)](
                    self._cost, table, table.shape[1], begin, self._columns, self._columns.shape[1], logs, self.epsilon,
                    sums, *shared, BLOCK_N=_block(longest), BLOCK_M=_block(width), enable_fp_fusion=True,
                )  # fmt: skip
                triton_bounds.add_mean_logs[(len(which), most)](
                    self._rows, self._rows.shape[1], row, on_device, begin, self._columns, self._columns.shape[1],
                    sums, self.epsilon, bounds, *shared, BLOCK_M=_block(width), enable_fp_fusion=True,
                )  # fmt: skip
        return bounds

    def dual_bounds(self, potentials: torch.Tensor, transposed: bool) -> torch.Tensor:
        """Return the bounds (P,) from potentials of the rows (K_a, n), or `transposed` of the columns (K_b, m)."""
        own, others = (self._columns, self._rows) if transposed else (self._rows, self._columns)
        sizes = own[1]
        f = potentials.masked_fill(torch.arange(potentials.shape[1], device=self._device) >= sizes[:, None], 0)
        means = f.double().sum(1) / sizes + self.epsilon * sizes.double().log()
        return self._pair_bounds(own, others, self._span_log_sums(f, transposed), means)

    def _table(self, spans: Sequence[tuple[torch.Tensor, torch.Tensor]], columns: bool) -> torch.Tensor:
        return to_device(side_table(spans, self._counts[0 if columns else 1], self._shapes, columns), self._device)

    def _make_costs(self) -> None:
        """Make the costs of all tiles, and the logarithms of the sums of exp(-C / eps) over parts of columns."""
        parts = [tile.b.parts() for tile in self.tiles]
        longest = max(int(ends.diff().max()) for ends, _, _ in parts)
        with_logs = longest >= _SHORTEST_PARTS
        sizes = [(len(ends) - 1) * height for (ends, _, _), (height, _) in zip(parts, self._shapes, strict=True)]
        logs = self._cost.new_empty(sum(sizes)) if with_logs else None
        pieces = logs.split(sizes) if with_logs else [self._cost] * len(sizes)
        costs = self._cost.split([height * width for height, width in self._shapes])
        for tile, cost, piece, (ends, _, _) in zip(self.tiles, costs, pieces, parts, strict=True):
            vars(tile)["cost"] = cost.view(len(tile.a.tokens), len(tile.b.tokens))  # in place of its property
            if not with_logs:
                width = len(tile.b.tokens)
                ends = torch.tensor([*range(0, width, _COST_COLUMNS), width])
            self._finish_costs(tile, ends, piece, with_logs, _block(longest) if with_logs else _COST_COLUMNS)
        offsets = [
            torch.full((count,), at) for count, at in zip(self._counts[1], accumulate(sizes, initial=0), strict=False)
        ]
        of_spans = (torch.cat(each) for each in zip(*(part[1:] for part in parts), strict=True))
        table = torch.stack([torch.cat(offsets), *of_spans])
        self._part_logs = (to_device(table, self._device), logs) if with_logs else None

    def _finish_costs(self, tile: Tile, ends: torch.Tensor, logs: torch.Tensor, with_logs: bool, block: int) -> None:
        x, y, ends = Tokens(tile.a.tokens), Tokens(tile.b.tokens), to_device(ends, self._device)
        height, width = tile.cost.shape
        step = max(1, tile.max_bytes // 2 // (8 * width))
        tokens, other_tokens = x.tokens.contiguous(), y.tokens.contiguous()
        hidden = tokens.shape[1]
        for first in range(0, height, step):
            rows = slice(first, min(first + step, height))
            with torch.autocast(self._device.type, enabled=False):
                inner = products(x.factor[rows], y.factor)
            with _on(self._device):
                triton_bounds.finish_costs[(triton.cdiv(len(inner), _COST_ROWS), len(ends) - 1)](
                    inner, len(inner), width, tokens[rows], other_tokens, x.norms[rows], y.norms, ends,
                    tile.a.scale, self.epsilon, x.cancellation, tile.cost[rows], logs[first:], height,
                    HIDDEN=hidden, BLOCK_N=_COST_ROWS, BLOCK_M=block, LOGS=with_logs,
                    BLOCK_D=max(1, _NEAR_ENTRIES // (_COST_ROWS * block)),
                )  # fmt: skip

    def _first_logs(self) -> torch.Tensor:
        """Return `log sum_j exp(-C_ij / eps)` over each column span, for all rows of its tile."""
        if self._part_logs is None:
            return self._span_log_sums(self._cost.new_zeros(self._columns.shape[1], self._longest[1]), transposed=True)
        (parts, part_logs), (out, blocks) = self._part_logs, self._logs_of(transposed=True)
        self._part_logs = None
        with _on(self._device):
            triton_bounds.join_parts[(self._columns.shape[1], blocks)](
                self._columns, self._columns.shape[1], parts, part_logs, out, BLOCK=_ACROSS
            )
        return out

    def _logs_of(self, transposed: bool) -> tuple[torch.Tensor, int]:
        """Return memory for a number for each span and token of the other side, and the blocks of such tokens."""
        across = [shape[0 if transposed else 1] for shape in self._shapes]
        total = sum(k * tokens for k, tokens in zip(self._counts[1 if transposed else 0], across, strict=True))
        return self._cost.new_empty(total), triton.cdiv(max(across), _ACROSS)

    def _span_log_sums(self, f: torch.Tensor, transposed: bool) -> torch.Tensor:
        """Return `log sum_i exp((f_ki - C_ij) / eps)` over the tokens i of span k, for tokens j of the other side."""
        (out, blocks), table = self._logs_of(transposed), self._columns if transposed else self._rows
        with _on(self._device):
            triton_bounds.span_log_sums[(table.shape[1], blocks)](
                self._cost, table, table.shape[1], f, f.shape[1], self.epsilon, out, TRANSPOSED=transposed,
                BLOCK_N=_block(f.shape[1]), BLOCK_ACROSS=_ACROSS, enable_fp_fusion=True,
            )  # fmt: skip
        return out

    def _pair_bounds(self, table: torch.Tensor, others: torch.Tensor, logs: torch.Tensor, means: torch.Tensor):
        transposed = table is self._columns
        bounds = self._cost.new_empty(self._pairs)
        with _on(self._device):
            triton_bounds.pair_bounds[(table.shape[1], max(self._counts[0 if transposed else 1]))](
                table, table.shape[1], others, others.shape[1], logs, means, self.epsilon, bounds,
                BLOCK_M=_block(self._longest[0 if transposed else 1]),
            )  # fmt: skip
        return bounds

    def _solve_again(self, again: torch.Tensor, pairs, limits, result: SinkhornResult, *how: float) -> None:
        first_a = first_b = 0
        for tile in self.tiles:
            rows = pairs[again, 0]
            which = again[(rows >= first_a) & (rows < first_a + len(tile.a))]
            if len(which):
                local = pairs[which] - to_device(torch.tensor([first_a, first_b]), self._device)
                solved = SinkhornPairs(tile, self.epsilon).solve(local, limits[which], *how)
                result.put(which, solved.padded(result.f.shape[1], result.g.shape[1]))
            first_a, first_b = first_a + len(tile.a), first_b + len(tile.b)


class TritonSinkhorn(SinkhornPairs):
    """`W_eps` of the span pairs of a tile on a CUDA device. ValueError: as of `TritonBatch`."""

    MAX_WINDOW = TRITON_WINDOW  # a kernel of 128 x 128 float32 takes a quarter of a multiprocessor's registers
    together = TritonBatch

    def __init__(self, tile: Tile, epsilon: float):
        super().__init__(tile, epsilon)
        self._alone = TritonBatch([tile], epsilon)

    def solve(self, pairs: torch.Tensor, *how, **more) -> SinkhornResult:
        return self._alone.solve(pairs, *how, **more)

    def _first_bounds(self) -> torch.Tensor:
        return self._alone.first_bounds().view(len(self.tile.a), len(self.tile.b))

    def _dual_bounds(self, potentials: torch.Tensor, transposed: bool) -> torch.Tensor:
        bounds = self._alone.dual_bounds(potentials, transposed).view(len(self.tile.a), len(self.tile.b))
        return bounds.T if transposed else bounds


def launch(rows: int) -> dict:
    """Return the launch options of a solve whose blocks have `rows` rows.

    Triton fuses multiplications and additions by default until 3.10.
    """
    warps = max(1, rows // LAUNCH["rows_a_warp"])
    return {"num_warps": warps, "maxnreg": LAUNCH["maxnreg"], "enable_fp_fusion": True}


def _block(width: int) -> int:
    return max(_SMALLEST_BLOCK, triton.next_power_of_2(width))


def _on(device: torch.device):
    """Make `device` current: Triton launches on the current device, which may differ from that of the costs."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
