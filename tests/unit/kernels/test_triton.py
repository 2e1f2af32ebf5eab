"""The Triton backend's arithmetic without a GPU, in Triton's interpreter; test_compiled_kernels.py compiles it.

The interpreter has to be chosen before Triton is imported, for a whole process. So `test_in_the_interpreter` runs this
file once more, and there, and only there, the tests marked `interpreted` are collected.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from clouds import clouds, islands
from far_device import Far, counted_waits, there
from oracle import entropic

triton = pytest.importorskip("triton", reason="the Triton backend needs triton, which torch for CUDA brings along")

from torch.utils._pytree import tree_map  # noqa: E402
from triton.runtime.interpreter import GridExecutor  # noqa: E402

from openrlhf_shear.config import SearchConfig, ShearConfig  # noqa: E402
from openrlhf_shear.config.shear import SpanCut  # noqa: E402
from openrlhf_shear.credit.shear import shear_groups, shear_weights  # noqa: E402
from openrlhf_shear.kernels.triton_sinkhorn import TritonBatch, TritonSinkhorn  # noqa: E402
from openrlhf_shear.transport import SinkhornPairs, Spans, search_groups, search_spans  # noqa: E402
from openrlhf_shear.transport.sinkhorn import log_domain_potentials  # noqa: E402
from openrlhf_shear.transport.tiles import Tile, tiles  # noqa: E402

SECOND = Path(sys.prefix) / "second_triton"
IN_INTERPRETER = os.environ.get("TRITON_INTERPRET") == "1"
if IN_INTERPRETER and "__bool__" not in vars(triton.language.condition):
    # The interpreter of triton 3.7, torch's own, takes every `tl.condition` for true, and the loop never ends.
    triton.language.condition.__bool__ = lambda self: bool(self.condition)
CONTRACT = 0.05  # of eps
ACCURACY = 0.01  # of eps; at most 0.0006 was measured, here and on hidden states of SmolLM2


def interpreted(test):
    return test if IN_INTERPRETER else None


def compiled(test):
    return None if IN_INTERPRETER else test


def make_tile(kind: str = "random", window: int = 20, stride: int = 15, lengths=((33, 1), (29, 24))) -> Tile:
    """By default spans of 20, 18 and 1 tokens against spans of 20, 14, 20 and 9."""
    both = clouds(kind, lengths[0] + lengths[1])
    rollouts = both[: len(lengths[0])], both[len(lengths[0]) :]
    (tile,) = tiles(*(Spans.pack(side, SpanCut(window, stride), 1.0) for side in rollouts), max_bytes=2**28)
    return tile


def block(tile: Tile, pair: torch.Tensor) -> torch.Tensor:
    rows, columns = (
        slice(int(spans.starts[k]), int(spans.starts[k] + spans.sizes[k]))
        for spans, k in zip((tile.a, tile.b), pair.tolist(), strict=True)
    )
    return tile.cost[rows, columns]


def run_again(*words: str, **variables: str) -> str:
    """Run this file in a process with these variables; return pytest's last line, such as "12 passed in 60.00s"."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, *words]
    environment = os.environ | variables
    run = subprocess.run(command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.splitlines()[-1]


@compiled
def test_in_the_interpreter():
    assert run_again(TRITON_INTERPRET="1").startswith("20 passed")


@compiled
@pytest.mark.long
@pytest.mark.skipif(not SECOND.is_dir(), reason=f"no second Triton: {SECOND}")
@pytest.mark.skipif(SECOND in Path(triton.__file__).parents, reason="this is the second Triton")
def test_with_the_second_triton():
    """Its interpreter runs what has loops, drifts and bounds."""
    with_second = {"PYTHONPATH": os.pathsep.join([str(SECOND), os.environ.get("PYTHONPATH", "")])}
    interpreted = run_again("-k", "drift or dual_bounds or two_sizes", **with_second, TRITON_INTERPRET="1")
    assert interpreted.startswith("4 passed")


@interpreted
@pytest.mark.parametrize(("kind", "epsilon"), [("random", 0.05), ("prefix", 0.015), ("clustered", 0.01)])
def test_values_and_plans_match_the_oracle(kind, epsilon):
    tile = make_tile(kind)
    pairs = torch.tensor([[0, 1, 2, 0], [0, 3, 1, 2]]).T  # not contiguous
    result = TritonSinkhorn(tile, epsilon).solve(pairs)
    assert result.converged.all() and not result.dropped.any() and (result.marginal_error <= 1e-3).all()
    assert result.f.shape == (4, 20) and result.g.shape == (4, 20)
    # Rounding omega costs a pair 30 iterations or saves it 60; together they take no more than the reference's.
    assert result.iterations.sum() <= 1.05 * SinkhornPairs(tile, epsilon).solve(pairs).iterations.sum()
    for p, pair in enumerate(pairs):
        cost = block(tile, pair).double()
        n, m = cost.shape
        f, g = result.f[p].double(), result.g[p].double()
        assert result.value[p].item() == pytest.approx(entropic(cost.numpy(), epsilon), abs=ACCURACY * epsilon)
        assert (f[n:] == 0).all() and (g[m:] == 0).all()
        plan = ((f[:n, None] + g[:m] - cost) / epsilon).exp() / (n * m)
        # Exponents of about 100 in float32 are good to 1e-5.
        torch.testing.assert_close(plan.sum(0), torch.full_like(plan[0], 1 / m), rtol=5e-5, atol=0)
        error = (plan.sum(1) - 1 / n).abs().sum().item()
        assert error == pytest.approx(result.marginal_error[p].item(), abs=5e-5)


@interpreted
def test_a_block_of_two_sizes_and_a_single_point():
    tile = make_tile(window=30, stride=30, lengths=((1, 1), (30, 3)))
    result = TritonSinkhorn(tile, 0.01).solve(tile.all_pairs())
    expected = [block(tile, pair).mean().item() for pair in tile.all_pairs()]  # a single point has one coupling
    assert result.value.tolist() == pytest.approx(expected, abs=1e-6)


@interpreted
def test_limits_drop_the_pairs_beyond_them():
    tile, epsilon = make_tile("clustered"), 0.05
    solver, pairs = TritonSinkhorn(tile, epsilon), tile.all_pairs()
    free = solver.solve(pairs)
    beyond = torch.arange(len(pairs)) % 2 == 0
    margin = torch.where(torch.arange(len(pairs)) % 3 == 0, 2.0, 0.02) * epsilon
    limits = torch.where(beyond, free.value - margin, free.value + margin)
    result = solver.solve(pairs, limits)
    assert torch.equal(result.dropped, beyond) and torch.equal(result.converged, ~beyond)
    assert (result.value[beyond] > limits[beyond]).all()
    assert (result.value[beyond] <= free.value[beyond] + 1e-6).all()
    assert torch.equal(result.value[~beyond], free.value[~beyond])
    assert (result.iterations <= free.iterations).all() and result.iterations.min() < 10
    # Half the least value is exceeded at once.
    assert (solver.solve(pairs, torch.full((len(pairs),), free.value.min() / 2)).iterations <= 2).all()


@interpreted
def test_the_value_and_potentials_of_an_unfinished_solve_agree_and_are_a_lower_bound():
    tile, epsilon = make_tile("clustered"), 0.01
    solver, pairs = TritonSinkhorn(tile, epsilon), torch.tensor([[0, 0], [0, 2]])
    done, short = solver.solve(pairs), solver.solve(pairs, max_iterations=10)
    early = solver.solve(pairs, limits=torch.full((2,), -1.0))
    assert not short.converged.any() and (short.iterations == 10).all() and (short.marginal_error > 1e-3).all()
    assert early.dropped.all() and (early.iterations == 1).all()
    for result in (early, short):
        assert (result.value < done.value).all()
        torch.testing.assert_close(result.value, result.f.mean(1) + result.g.mean(1), rtol=0, atol=1e-6)


@interpreted
@pytest.mark.parametrize("epsilon", [0.02, 1e-4])
def test_dual_bounds_are_those_of_the_reference(epsilon):
    tile = make_tile(lengths=((33, 1), (60, 40)))  # more columns than a program takes
    reference, solver = SinkhornPairs(tile, epsilon), TritonSinkhorn(tile, epsilon)
    generator = torch.Generator().manual_seed(0)
    f, g = torch.randn(3, 20, generator=generator), torch.randn(len(tile.b), 20, generator=generator)
    for potentials, spans in ((f, tile.a), (g, tile.b)):
        potentials[torch.arange(20) >= spans.sizes[:, None]] = torch.nan
    for potentials in ((), (f, g)):
        # Exponents of up to 1e4 are rounded: 2e-6 was measured at an epsilon of 1e-4.
        torch.testing.assert_close(solver.bounds(*potentials), reference.bounds(*potentials), rtol=0, atol=4e-6)
    tight = TritonSinkhorn(replace(tile, max_bytes=2**10), epsilon)  # one row span at a time
    # Its costs are made in smaller blocks, with other roundings: 1.2e-7 was measured.
    torch.testing.assert_close(tight.bounds(), solver.bounds(), rtol=0, atol=1e-6)
    for potentials, transposed in ((f, False), (g, True)):
        bounds = (s._dual_bounds(potentials, transposed) for s in (solver, reference))
        torch.testing.assert_close(*bounds, rtol=1e-6, atol=1e-6)


@interpreted
@pytest.mark.parametrize(("dtype", "stride"), [(torch.float32, 15), (torch.float64, 15), (torch.float16, 1)])
def test_one_pass_makes_costs_and_their_sums(dtype, stride):
    """Against float64, with tokens that are equal or nearly so; at a stride of 1, sums are not made with the costs."""
    epsilon, scale = 0.02, 3.0
    both = [x.to(dtype) for x in clouds("prefix", (37, 5, 40, 11))]
    both[2][30:33] = both[0][3] + 1e-3 * torch.randn(3, 24, generator=torch.Generator().manual_seed(1)).to(dtype)
    a, b = (Spans.pack(side, SpanCut(20, stride), scale) for side in (both[:2], both[2:]))
    tile = replace(next(tiles(a, b, 2**28)), max_bytes=2**13)  # several runs of rows
    batch = TritonBatch([tile], epsilon)
    exact = (a.tokens.double()[:, None] - b.tokens.double()).square().sum(2).sqrt() / scale
    # Of the norms, about 1: a squared distance of 1e-4 or more has an error of 2e-7, a smaller one is computed again.
    torch.testing.assert_close(tile.cost.double(), exact, rtol=1e-6, atol=2e-5 / scale)
    assert (tile.cost[exact == 0] == 0).all() and (exact == 0).sum() > 10
    near = (exact > 0) & (exact * scale < 0.012)
    assert near.sum() >= 3
    torch.testing.assert_close(tile.cost[near].double(), exact[near], rtol=1e-5, atol=0)
    logs = batch._first_logs().view(len(b), len(a.tokens))
    for k, block in enumerate(b.blocks(exact.T)):
        torch.testing.assert_close(logs[k].double(), (-block / epsilon).logsumexp(0), rtol=1e-5, atol=4e-4)


@interpreted
def test_tiles_that_share_launches_get_what_each_gets_alone():
    epsilon = 0.05
    of_tiles = [
        make_tile("random"),
        make_tile("prefix", window=12, stride=6, lengths=((13,), (9,))),
        make_tile("clustered", window=5, stride=5, lengths=((4,), (11,))),
    ]
    batch, alone = TritonBatch(of_tiles, epsilon), [TritonSinkhorn(replace(tile), epsilon) for tile in of_tiles]
    expected = torch.cat([each.bounds().flatten() for each in alone])
    torch.testing.assert_close(batch.bounds(), expected, rtol=0, atol=1e-6)  # blocks differ, and so do roundings
    shapes, firsts = [(len(tile.a), len(tile.b)) for tile in of_tiles], torch.zeros(2, dtype=torch.int64)
    pairs, solved = [], []
    for tile, each, shape in zip(of_tiles, alone, shapes, strict=True):
        pairs.append(tile.all_pairs() + firsts)
        solved.append(each.solve(tile.all_pairs()))
        firsts = firsts + torch.tensor(shape)
    found = batch.solve(torch.cat(pairs))
    torch.testing.assert_close(found.value, torch.cat([each.value for each in solved]), rtol=0, atol=1e-3 * epsilon)
    assert found.converged.all()
    f, g = (torch.randn(int(n), 20, generator=torch.Generator().manual_seed(0)) for n in firsts)
    given = zip(alone, f.split([a for a, _ in shapes]), g.split([b for _, b in shapes]), strict=True)
    expected = [
        each.bounds(*(x[:, :w] for x, w in zip(own, each._alone._longest, strict=True))) for each, *own in given
    ]
    torch.testing.assert_close(batch.bounds(f, g), torch.cat([x.flatten() for x in expected]), rtol=0, atol=1e-6)
    groups = [(tile.a, tile.b) for tile in of_tiles]
    raced = search_groups(groups, None, lambda tiles: TritonBatch(tiles, epsilon), 2**28)
    for search, (a, b), values, shape in zip(raced, groups, solved, shapes, strict=True):
        values = values.value.view(shape)
        torch.testing.assert_close(search.correct, values.amin(1), rtol=0, atol=1e-3 * epsilon)
        torch.testing.assert_close(search.incorrect, values.amin(0), rtol=0, atol=1e-3 * epsilon)
        assert len(search.sides[0].nearest) == len(a) and search.sides[0].nearest.max() < len(b)


@interpreted
def test_pairs_that_are_not_finite_are_solved_again_by_torch(monkeypatch):
    tile = make_tile()
    solver = TritonSinkhorn(tile, 0.05)
    tile.cost[25, 3] = torch.nan  # in spans 1 of a and 0 of b
    asked, solve = [], SinkhornPairs.solve

    def spy(self, pairs, limits=None, tolerance=None, max_iterations=None):
        asked.append((pairs, limits, tolerance, max_iterations))
        tile.cost[25, 3] = 1.0
        return solve(self, pairs, limits, tolerance, max_iterations)

    monkeypatch.setattr(SinkhornPairs, "solve", spy)
    pairs, limits = tile.all_pairs(), torch.full((12,), 9.0)
    result = solver.solve(pairs, limits, 2e-3, 500)
    ((again, their_limits, tolerance, max_iterations),) = asked
    assert again.tolist() == [[1, 0]] and their_limits.tolist() == [9.0] and (tolerance, max_iterations) == (2e-3, 500)
    assert result.converged.all()
    torch.testing.assert_close(result.value, solve(SinkhornPairs(tile, 0.05), pairs).value, rtol=0, atol=5e-4)


SIGNS = {"too small": -1.0, "too large": 1.0, "of random signs": None}


@interpreted
@pytest.mark.parametrize("errors", SIGNS)
def test_the_rounding_of_the_hardware_s_powers_keeps_the_contract(errors, monkeypatch):
    """Every logarithm and exponential gets its largest error.

    NVIDIA allows lg2.approx an error of 2^-22, relative where |log2 x| > 1, and ex2.approx a relative error of 2^-22.
    With .ftz, numbers below 2^-126 are 0.
    """
    from triton.runtime.interpreter import InterpreterBuilder

    generator, rounded = np.random.default_rng(0), set()

    def largest_error(of: np.ndarray) -> np.ndarray:
        return 2.0**-22 * (SIGNS[errors] or generator.choice([-1.0, 1.0], of.shape))

    def log2(x):
        rounded.add("log2")
        with np.errstate(divide="ignore"):
            exact = np.log2(np.where(x < 2.0**-126, 0, x).astype(np.float64))
        return (exact + largest_error(x) * np.abs(exact).clip(1, 128)).astype(np.float32)

    def exp2(x):
        rounded.add("exp2")
        exact = np.exp2(x.astype(np.float64))
        return np.where(exact < 2.0**-126, 0, exact * (1 + largest_error(x))).astype(np.float32)

    monkeypatch.setattr(InterpreterBuilder, "create_log2", lambda self, arg: self.unary_op(arg, log2))
    monkeypatch.setattr(InterpreterBuilder, "create_exp2", lambda self, arg: self.unary_op(arg, exp2))
    for kind, epsilon in (("prefix", 0.015), ("clustered", 0.01)):
        tile = make_tile(kind)
        pairs = torch.tensor([[0, 0], [1, 3]])
        result = TritonSinkhorn(tile, epsilon).solve(pairs, max_iterations=500)
        assert result.converged.all()
        for pair, value in zip(pairs, result.value.tolist(), strict=True):
            exact = entropic(block(tile, pair).double().numpy(), epsilon)
            assert value == pytest.approx(exact, abs=CONTRACT * epsilon)
    assert rounded == {"log2", "exp2"}


def far_clusters() -> Tile:
    (tile,) = tiles(*(Spans.pack([x], SpanCut(6, 1), 1.0) for x in islands(6)), max_bytes=2**28)
    return tile


@interpreted
def test_the_kernel_is_built_again_when_scalings_drift(monkeypatch):
    tile, epsilon = far_clusters(), 0.002
    monkeypatch.setattr(SinkhornPairs, "solve", None)  # not flagged
    result = TritonSinkhorn(tile, epsilon).solve(tile.all_pairs())
    ((_, blocks),) = tile.batches(tile.all_pairs())
    f, g, _, _ = log_domain_potentials(blocks, epsilon, tolerance=1e-6, max_iterations=20_000)
    assert result.converged.all()
    assert result.value.item() == pytest.approx((f.mean() + g.mean()).item(), abs=ACCURACY * epsilon)


@interpreted
def test_nothing_is_concluded_from_a_kernel_that_scalings_have_left(monkeypatch):
    tile, epsilon, asked = far_clusters(), 0.002, []
    solve = SinkhornPairs.solve
    monkeypatch.setattr(SinkhornPairs, "solve", lambda *args: asked.append(args) or solve(*args))
    for max_iterations in (10, 20):  # by 20 the scalings have drifted by e^30
        TritonSinkhorn(tile, epsilon).solve(tile.all_pairs(), None, 1e-3, max_iterations)
    assert [args[-1] for args in asked] == [20]


@interpreted
def test_a_search_agrees_with_the_reference():
    both, epsilon = clouds("prefix", (26, 10, 26, 10)), 0.015
    a, b = (Spans.pack(rollouts, SpanCut(10, 5), 1.0) for rollouts in (both[:2], both[2:]))
    found = [
        search_spans(a, b, lambda tile, s=solver: s(tile, epsilon), 2**28, keep=True)
        for solver in (TritonSinkhorn, SinkhornPairs)
    ]
    for side in ("correct", "incorrect"):
        values = (getattr(search, side) for search in found)
        torch.testing.assert_close(*values, rtol=0, atol=ACCURACY * epsilon)
    assert all(
        torch.equal(found_side.nearest, other.nearest)
        for found_side, other in zip(*(search.sides for search in found), strict=True)
    )
    assert not found[0].table.solved.all()


@interpreted
def test_the_waits_of_a_search_of_many_groups_are_those_of_a_search_of_one(monkeypatch):
    """SHEAR waits for the norms, the spread, the distinct seeds, the pairs left, and the results; and in each turn."""
    run = GridExecutor.__call__

    def on_near(self, *args, **kwargs):
        with torch._C.DisableTorchFunction():
            return run(self, *tree_map(lambda each: each.near if isinstance(each, Far) else each, args), **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", on_near)
    clouds_of = [clouds("prefix", lengths) for lengths in ((26, 9, 25, 9, 8, 7), (9, 30), (15, 16, 17))]
    groups = [(states, ([True, False, None] * 2)[: len(states)]) for states in clouds_of]
    config, search = ShearConfig(window=10, stride=5), SearchConfig(max_cost_bytes=2**28)
    for count in (1, 3):
        with counted_waits() as waits:
            found = shear_groups([(there(states), outcomes) for states, outcomes in groups[:count]], config, search)
        in_turns = [line for line in waits if line.endswith((".tolist()", "torch.nonzero(flagged)[:, 0]"))]
        turns = max(waits[line] for line in in_turns if "race.py" in line)
        assert sum(waits.values()) == 5 + 2 * turns + 1 and turns <= 3, waits  # the seeds are solved before the turns
        for result, (states, outcomes) in zip(found, groups, strict=False):
            expected = shear_weights(states, outcomes, config, SearchConfig(backend="torch"))
            for rows in zip(result.weights, expected.weights, strict=True):
                torch.testing.assert_close(*rows, rtol=0, atol=ACCURACY * result.epsilon)


@compiled
def test_a_window_that_does_not_fit_is_refused():
    assert TritonSinkhorn.MAX_WINDOW == 128
    with pytest.raises(ValueError, match=r"at most 128 tokens: got 129; use credit\.backend torch"):
        TritonSinkhorn(make_tile(window=129, stride=10, lengths=((129,), (3,))), 0.02)
