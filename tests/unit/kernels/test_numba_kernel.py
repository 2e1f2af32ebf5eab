"""The kernel that the CPU's solver makes straight from tokens, and the functions it compiles to vectors for that."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from oracle import entropic

from openrlhf_shear.config.shear import SpanCut
from openrlhf_shear.kernels import numba_loops as loops
from openrlhf_shear.kernels import numba_sinkhorn
from openrlhf_shear.kernels.numba_matrix import make_kernel
from openrlhf_shear.kernels.numba_sinkhorn import NumbaSinkhorn
from openrlhf_shear.transport import SinkhornPairs, Spans
from openrlhf_shear.transport.tiles import tiles

EPS = np.finfo(np.float32).eps
OVERLAPPING = SpanCut(40, 10)


def test_the_exponential_is_good_to_the_rounding_of_its_argument():
    """The entries of identical tokens are the exponential of the shift."""
    tokens, squared, kernel = np.zeros((20, 1), np.float32), np.zeros(20, np.float32), np.empty((1, 20), np.float32)
    for x in np.linspace(-87, 87, 40_001).astype(np.float32):
        products, maxima = np.zeros_like(kernel), (np.zeros(1, np.float32), np.zeros(20, np.float32))
        make_kernel(products, 0, tokens[:1], tokens, squared[:1], squared, 1e-4, x, 1.0, -100.0, kernel, *maxima)
        # x log2(e) is rounded to half a unit of up to 126; log(2) times that is the exponent's error. 3 roundings more.
        assert (np.abs(kernel / np.exp(np.float64(x)) - 1) <= EPS * (np.abs(x) + 3)).all()


def test_the_logarithm_is_good_to_its_rounding():
    """A span of a single row: its sums are the entries, and the smallest float32 that is not denormal."""
    x = np.exp(np.linspace(-87, 88, 400_001)).astype(np.float32)
    x = np.append(x, np.float32(1))
    exact = np.log((x + np.float32(loops.TINY)).astype(np.float64))
    logs, start, size = np.empty((1, len(x)), np.float32), np.zeros(1, np.int64), np.ones(1, np.int64)
    loops.row_span_sums(x[None], 0, x.size, start, size, np.ones((1, 1), np.float32), 0.0, logs)
    assert (np.abs(logs[0] - exact) <= 2 * EPS * np.maximum(np.abs(exact), 1)).all()
    assert logs[0, -1] == 0


def sides(dtype: torch.dtype, offset: float = 0.0, cut: SpanCut = OVERLAPPING) -> tuple[Spans, Spans]:
    """Rollouts of tokens of which two are the same."""
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.normal(size=(count, 24)) + offset).to(dtype) for count in (130, 90))
    y[7] = x[3]
    return Spans.pack([x], cut, 2.0), Spans.pack([y], cut, 2.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.5, 0.05, 0.015])
def test_the_kernel_is_the_one_of_the_costs(monkeypatch, dtype, offset, epsilon):
    """The distance of spans of one token, and its bounds, are the cost: `eps (shift - log K)`."""
    monkeypatch.setattr(numba_sinkhorn, "_PRODUCT_ROWS", 50)  # of 130
    a, b = sides(dtype, offset, SpanCut(1, 1))
    tile = next(tiles(a, b, 2**28))
    solver = NumbaSinkhorn(tile, epsilon)
    cost = torch.cdist(a.tokens.double(), b.tokens.double(), compute_mode="donot_use_mm_for_euclid_dist").numpy() / 2
    found = solver.solve(tile.all_pairs()).value.reshape(cost.shape).double().numpy()
    bounds = solver.bounds().double().numpy()
    reached = cost / epsilon < 158  # eps: farther entries of the kernel are 0
    assert reached.all() == (epsilon > 0.015)
    # An entry of 0 counts as e^-158 of an identical token's, and any entry grows by that where some are 0.
    exact = -epsilon * np.logaddexp(np.where(reached, -cost / epsilon, -np.inf), -np.inf if reached.all() else -158)
    norm = float(a.tokens.double().norm(dim=1).max()) / 2
    # Squared distances are sums of terms of up to 2 norm^2, good to 4 roundings; exponents of up to 80 are rounded.
    tolerance = 4 * EPS * norm**2 / cost.clip(1e-6) + 400 * EPS * epsilon
    edge = np.abs(cost / epsilon - 158) < 0.1  # there rounding decides whether an entry is 0
    assert (np.abs(found - cost) <= tolerance).all()
    assert (np.abs(bounds - exact) <= tolerance)[~edge].all()
    for identical in (found[3, 7], bounds[3, 7]):
        assert identical == pytest.approx(0, abs=3e-5 * epsilon), "an identical token is at distance 0"


def test_bounds_hold_for_potentials_that_would_overflow():
    """A bound of potentials far from the solution is low. Sums of such scalings and the kernel leave float32."""
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(5 + 0.01 * rng.normal(size=(40, 24))).float() for _ in range(2))
    tile = next(tiles(*(Spans.pack([side], SpanCut(40, 10), 2.0) for side in (x, y)), 2**28))
    solver = NumbaSinkhorn(tile, 0.05)
    distance = solver.solve(tile.all_pairs()).value.item()
    potentials, zero = torch.zeros(1, 40), torch.zeros(1, 40)
    potentials[0, 3] = -50.0
    for bounds in (solver.bounds(potentials, zero), solver.bounds(zero, potentials)):
        assert 0 < bounds.item() <= distance + 1e-3 * 0.05


def test_what_is_not_a_number_goes_to_the_reference():
    a, b = sides(torch.float32)
    a.tokens[25] = torch.nan
    tile = next(tiles(a, b, 2**28))
    pairs = tile.all_pairs()
    found, expected = (solver(tile, 0.05).solve(pairs) for solver in (NumbaSinkhorn, SinkhornPairs))
    assert torch.equal(found.value.isnan(), expected.value.isnan()) and found.value.isnan().any()
    there = ~expected.value.isnan()
    torch.testing.assert_close(found.value[there], expected.value[there], rtol=0, atol=1e-3 * 0.05)


def test_a_limit_above_the_distance_drops_nothing_and_one_below_it_everything():
    tile, epsilon = next(tiles(*sides(torch.float32), 2**28)), 0.05
    solver, pairs = NumbaSinkhorn(tile, epsilon), tile.all_pairs()
    free = solver.solve(pairs).value
    for margin, dropped in ((0.1 * epsilon, False), (-0.1 * epsilon, True)):
        assert (solver.solve(pairs, free + margin).dropped == dropped).all()


def test_pairs_whose_plans_pass_entries_that_underflow_are_solved_and_not_left_to_the_reference(monkeypatch):
    """Tokens in bunches: a plan between spans of other ones moves its mass over entries far below a row's largest."""
    rng = np.random.default_rng(0)
    bunches = rng.normal(size=(6, 24))

    def side(of: list[int]) -> Spans:
        tokens = bunches[np.repeat(of, 4)] + 0.05 * rng.normal(size=(4 * len(of), 24))
        return Spans.pack([torch.from_numpy(tokens).float()], SpanCut(16, 4), 5.0)

    a, b = side(rng.integers(4, size=20).tolist()), side((2 + rng.integers(4, size=18)).tolist())
    tile, epsilon = next(tiles(a, b, 2**28)), 0.015
    pairs = tile.all_pairs()
    monkeypatch.setattr(SinkhornPairs, "solve", None)
    solved = NumbaSinkhorn(tile, epsilon).solve(pairs)
    assert solved.converged.all()
    cost = torch.cdist(a.tokens.double(), b.tokens.double()).numpy() / 5.0
    for at in range(0, len(pairs), 11):
        row, column = (4 * int(k) for k in pairs[at])
        exact = entropic(cost[row : row + 16, column : column + 16], epsilon)
        assert solved.value[at].item() == pytest.approx(exact, abs=1e-3 * epsilon)


@pytest.mark.parametrize("flushes", [False, True])
def test_little_work_is_done_where_it_is_asked_for_and_is_the_same_work(monkeypatch, flushes):
    a, b = sides(torch.float32)
    tile, found = next(tiles(a, b, 2**28)), []
    torch.set_flush_denormal(flushes)
    try:
        for few in (0, 2**40):
            monkeypatch.setattr(numba_sinkhorn, "FEW_ENTRIES", few)
            before = {*threading.enumerate()}
            solver = NumbaSinkhorn(tile, 0.02)
            solved = solver.solve(tile.all_pairs())
            bounds = solver.bounds(solved.f[:: len(tile.b)], solved.g[: len(tile.b)])
            found.append((solved.value.numpy(), solver.bounds().numpy(), bounds.numpy()))
            assert ({*threading.enumerate()} <= before) == (few > 0)
            assert (np.float32(1e-40) * np.float32(1) == 0) == flushes, "the thread's mode is what it was"
    finally:
        torch.set_flush_denormal(False)
    for pooled, here in zip(*found, strict=True):
        np.testing.assert_array_equal(pooled, here)


WEIGHTS = """
import hashlib, torch
from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import shear_weights

drawn = torch.Generator().manual_seed(0)
words = torch.randn(12, 64, generator=drawn)
states = [words[torch.randint(12, (n,), generator=drawn)] + 0.3 * torch.randn(n, 64, generator=drawn)
          for n in range(60, 64)]
weights = shear_weights(states, [True, False, True, False], ShearConfig(window=16, stride=4, epsilon_rel=0.015)).weights
print(hashlib.sha256(torch.cat(weights).numpy().tobytes()).hexdigest())
"""


def test_a_process_that_compiles_the_loops_computes_what_one_that_reads_them_from_the_cache_does(tmp_path):
    """Bit for bit: otherwise a run that is resumed differs from the first run on a machine."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def printed() -> str:
        command = [sys.executable, "-c", WEIGHTS]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    compiled = printed()
    assert [*tmp_path.rglob("*.nbc")], "nothing was kept"
    assert printed() == compiled


@pytest.mark.parametrize("window", [100, 208, 256, 512, 900])
def test_the_first_bound_of_identical_long_spans_is_zero(window):
    """All tokens of both spans are the same: W is 0, and each row's sum is the largest that float32 has to hold."""
    states = torch.zeros(window, 8)
    states[:, 0] = 1
    spans = Spans.pack([states], SpanCut(window, window), 1.0)
    (tile,) = tiles(spans, spans, 2**28)
    for epsilon in (0.015, 0.012, 0.01, 0.002):
        assert abs(NumbaSinkhorn(tile, epsilon).bounds().item()) <= 1e-4 * epsilon
