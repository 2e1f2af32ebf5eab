"""The parts of our span search: the problem, the fate of its pairs, its stages, and the machine's limits.

Legend: T tokens of a side, K_c/K_w spans of the correct/incorrect side, P pairs, n/m tokens of a pair's spans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from time import process_time as clock  # of all threads: with one thread, other work on the machine does not count
from types import SimpleNamespace

import numpy as np
import torch

from openrlhf_shear.config.shear import SpanCut
from openrlhf_shear.kernels.backends import choose_backend
from openrlhf_shear.kernels.numba_sinkhorn import NumbaSinkhorn
from openrlhf_shear.transport import SinkhornPairs, Spans, SpanSearch, make_distance, search_bytes, search_spans
from openrlhf_shear.transport import tiles as tiles_module

PRODUCT = "torch.mm"
STAGES = ("kernel", "bounds", "solves", "rest", "total")  # kernel: making the token costs and the kernel from them


@dataclass(frozen=True)
class Group:
    """The two sides of a group, and the settings of their search."""

    correct: Spans
    incorrect: Spans
    epsilon: float
    backend: type[SinkhornPairs]

    @classmethod
    def of(cls, states: list[torch.Tensor], correct: list[bool], args) -> Group:
        mean_norm = float(torch.cat([h.double().norm(dim=1) for h in states]).mean())
        sides = [[h for h, c in zip(states, correct, strict=True) if c is which] for which in (True, False)]
        packed = [Spans.pack(side, SpanCut(args.window, args.stride), mean_norm) for side in sides]
        return cls(*packed, args.epsilon_rel, choose_backend("auto", "cpu", args.window))

    @property
    def sides(self) -> tuple[Spans, Spans]:
        return self.correct, self.incorrect

    @property
    def pairs(self) -> int:
        return len(self.correct) * len(self.incorrect)

    def areas(self) -> torch.Tensor:
        """Return (K_c, K_w) numbers of cost entries of each pair."""
        return self.correct.sizes[:, None] * self.incorrect.sizes

    def search(
        self, prune: bool = True, backend: type[SinkhornPairs] | None = None, wrap=lambda x: x, keep: bool = False
    ) -> SpanSearch:
        """Search as `shear_weights` does; `wrap` goes around the distance."""
        distance = make_distance("sinkhorn", self.epsilon, self.correct, self.incorrect, backend or self.backend)
        limit = search_bytes(0, torch.device("cpu"))
        return search_spans(self.correct, self.incorrect, wrap(distance), limit, prune, keep)

    def tile(self) -> tiles_module.Tile:
        """Return the group as one tile, whatever its size."""
        return tiles_module.Tile(*self.sides, *(slice(0, len(side)) for side in self.sides), max_bytes=2**28)

    def blocks(self, pairs: np.ndarray) -> list[np.ndarray]:
        """Return the float64 costs of `pairs` (P, 2), computed without the package."""
        rows, columns = (
            [slice(i, i + n) for i, n in zip(side.starts.tolist(), side.sizes.tolist(), strict=True)]
            for side in self.sides
        )
        return [np.ascontiguousarray(self._costs[rows[k], columns[j]]) for k, j in pairs]

    @cached_property
    def _costs(self) -> np.ndarray:
        x, y = (side.tokens.double() / side.scale for side in self.sides)
        return torch.cdist(x, y).numpy()


def counts(pruned: SpanSearch, unpruned: SpanSearch) -> dict:
    """Return the numbers of pairs that never started, were dropped, solved or unconverged, and the iterations."""
    table = pruned.table
    started = table.iterations > 0
    return {
        "never started": int((~started).sum()), "dropped": int((started & ~table.solved).sum()),
        "solved": pruned.solved_pairs, "unconverged": pruned.unconverged_pairs,
        "iterations per pair, pruned": float(table.iterations.double().mean()),
        "iterations per pair, unpruned": float(unpruned.table.iterations.double().mean()),
    }  # fmt: skip


def made(distance: Callable, tile: tiles_module.Tile):
    """Return a tile's solver, with the token costs made if it would make them on first use."""
    pairs = distance(tile)
    if not isinstance(pairs, NumbaSinkhorn):  # Numba makes its kernel from the tokens
        tile.cost  # noqa: B018  makes the cached costs
    return pairs


def profile(group: Group, prune: bool, at_least: float) -> dict[str, float]:
    """Return the processor seconds of each stage (`STAGES`) of the fastest search, and of the fastest `bare_product`.

    They take turns, 3 times or for `at_least` seconds of searches.
    """
    product, runs, products = bare_product(group), [], []
    while len(runs) < 3 or sum(run["total"] for run in runs) < at_least:
        spent = dict.fromkeys(STAGES[:-2], 0.0)
        begin = clock()
        group.search(prune, wrap=partial(staged, spent))
        total = clock() - begin
        runs.append({**spent, "rest": total - sum(spent.values()), "total": total})
        begin = clock()
        product()
        products.append(clock() - begin)
    return min(runs, key=lambda run: run["total"]) | {PRODUCT: min(products)}


def staged(spent: dict[str, float], distance: Callable) -> Callable:
    """Wrap `distance` to add the processor seconds of its stages to `spent`."""
    timed = partial(_timed, spent)

    def of_tile(tile: tiles_module.Tile):
        pairs = timed("kernel", partial(made, distance, tile))()
        # A namespace: a method replaced on its own object would keep the tile's memory until Python looks for cycles.
        bounds, solve = timed("bounds", pairs.bounds), timed("solves", pairs.solve)
        return SimpleNamespace(bounds=bounds, solve=solve, exact_bounds=pairs.exact_bounds)

    return of_tile


def _timed(spent: dict[str, float], name: str, function: Callable) -> Callable:
    """Wrap `function` to add its processor seconds to `spent[name]`."""

    def inner(*args, **kwargs):
        begin = clock()
        result = function(*args, **kwargs)
        spent[name] += clock() - begin
        return result

    return inner


def bare_product(group: Group) -> Callable:
    """Return a plain matrix product of the token costs' size, in the dtype that makes them."""
    x, y = (side.tokens.float() for side in (group.correct, group.incorrect))
    return partial(torch.mm, x, y.T.contiguous())


def physical_limits(group: Group, stages: dict[str, float], pruned: SpanSearch) -> dict:
    """Return the rates of our stages, in GFLOP/s, and our processor seconds against those of `bare_product`."""
    product = stages[PRODUCT]
    gemm = 2 * len(group.correct.tokens) * len(group.incorrect.tokens) * group.correct.tokens.shape[1]
    in_solves = 4 * float((pruned.table.iterations * group.areas()).sum())
    return {
        "torch.mm_s": product, "torch.mm_gflops": gemm / product / 1e9,
        "kernel_gflops": gemm / stages["kernel"] / 1e9, "solves_gflops": in_solves / stages["solves"] / 1e9,
        "search_over_torch.mm": stages["total"] / product,
    }  # fmt: skip
