"""The kernel that the CPU's solver makes straight from tokens, and the functions it compiles to vectors for that."""

import numpy as np
import pytest
import torch
from numba import njit
from oracle import entropic

from openrlhf_shear.config.spans import SpanCut
from openrlhf_shear.kernels import numba_loops as loops
from openrlhf_shear.kernels import numba_matrix, numba_sinkhorn
from openrlhf_shear.kernels.numba_sinkhorn import NumbaSinkhorn
from openrlhf_shear.transport import SinkhornPairs, Spans
from openrlhf_shear.transport.tiles import tiles

EPS = np.finfo(np.float32).eps


@njit
def each(function, values):
    found = np.empty_like(values)
    for i in range(len(values)):
        found[i] = function(values[i])
    return found


def test_the_exponential_is_good_to_the_rounding_of_its_argument():
    x = np.linspace(-87, 87, 400_001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    relative = np.abs(each(numba_matrix._exp, x) / exact - 1)
    # x log2(e) is rounded to half a unit of up to 126, which log(2) times is the exponent's error; 3 roundings more.
    assert (relative <= EPS * (np.abs(x) + 3)).all()


def test_the_logarithm_is_good_to_its_rounding():
    x = np.exp(np.linspace(-87, 88, 400_001)).astype(np.float32)
    exact = np.log(x.astype(np.float64))
    assert (np.abs(each(loops._log, x) - exact) <= 2 * EPS * np.maximum(np.abs(exact), 1)).all()
    assert each(loops._log, np.ones(1, np.float32)) == 0


def sides(dtype: torch.dtype, offset: float = 0.0) -> tuple[Spans, Spans]:
    """Rollouts of tokens of which two are the same."""
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.normal(size=(count, 24)) + offset).to(dtype) for count in (130, 90))
    y[7] = x[3]
    return Spans.pack([x], SpanCut(40, 10), 2.0), Spans.pack([y], SpanCut(40, 10), 2.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.5, 0.05])
def test_the_kernel_is_the_one_of_the_costs(dtype, offset, epsilon):
    a, b = sides(dtype, offset)
    solver = NumbaSinkhorn(next(tiles(a, b, 2**28)), epsilon)
    cost = torch.cdist(a.tokens.double(), b.tokens.double(), compute_mode="donot_use_mm_for_euclid_dist") / 2
    exact = (solver._shift - cost / epsilon).exp().numpy()
    kept = exact > np.exp(-75.9)
    norm = float(a.tokens.double().norm(dim=1).max()) / 2
    # Squared distances are sums of terms of up to 2 norm^2, good to 4 roundings; exponents of up to 80 are rounded.
    tolerance = 4 * EPS * norm**2 / cost.numpy()[kept].clip(1e-6) / epsilon + 200 * EPS
    assert (np.abs(np.log(solver._kernel[kept] / exact[kept])) <= tolerance).all()
    assert (solver._kernel[exact < np.exp(-76.1)] == 0).all() and solver._floored == bool((solver._kernel == 0).any())
    assert solver._kernel[3, 7] == pytest.approx(np.exp(solver._shift), rel=1e-5), "an identical token is at distance 0"
    for axis, largest in zip((1, 0), solver._largest, strict=True):
        np.testing.assert_array_equal(largest, solver._kernel.max(axis))


def test_what_is_not_a_number_goes_to_the_reference():
    a, b = sides(torch.float32)
    a.tokens[25] = torch.nan
    tile = next(tiles(a, b, 2**28))
    pairs = tile.all_pairs()
    found, expected = (solver(tile, 0.05).solve(pairs) for solver in (NumbaSinkhorn, SinkhornPairs))
    assert torch.equal(found.value.isnan(), expected.value.isnan()) and found.value.isnan().any()
    there = ~expected.value.isnan()
    torch.testing.assert_close(found.value[there], expected.value[there], rtol=0, atol=1e-3 * 0.05)


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
    for at in range(0, len(pairs), 29):
        row, column = (4 * int(k) for k in pairs[at])
        exact, _ = entropic(cost[row : row + 16, column : column + 16], epsilon)
        assert solved.value[at].item() == pytest.approx(exact, abs=1e-3 * epsilon)


@pytest.mark.parametrize("flushes", [False, True])
def test_little_work_is_done_where_it_is_asked_for_and_is_the_same_work(monkeypatch, flushes):
    a, b = sides(torch.float32)
    tile, found = next(tiles(a, b, 2**28)), []
    torch.set_flush_denormal(flushes)
    try:
        for few in (0, 2**40):
            monkeypatch.setattr(numba_sinkhorn, "_FEW_ENTRIES", few)
            solver = NumbaSinkhorn(tile, 0.02)
            solved = solver.solve(tile.all_pairs())
            bounds = solver.bounds(solved.f[:: len(tile.b)], solved.g[: len(tile.b)])
            found.append((solver._kernel, solved.value.numpy(), bounds.numpy()))
            assert (len(solver._pool._threads) == 0) == (few > 0)
            assert (np.float32(1e-40) * np.float32(1) == 0) == flushes, "the thread's mode is what it was"
    finally:
        torch.set_flush_denormal(False)
    for pooled, here in zip(*found, strict=True):
        np.testing.assert_array_equal(pooled, here)
