"""The racing search: the same answer as solving every pair, with evidence, within its memory."""

import math
from dataclasses import replace

import pytest
import torch
from clouds import KINDS, clouds, islands, real_states
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import entropic
from scipy.special import logsumexp
from together import Together
from torch.utils._python_dispatch import TorchDispatchMode

from openrlhf_shear.config.shear import DISTANCES, SpanCut
from openrlhf_shear.kernels.backends import choose_backend
from openrlhf_shear.kernels.numba_sinkhorn import NumbaSinkhorn
from openrlhf_shear.transport import (
    SinkhornPairs,
    SinkhornResult,
    Spans,
    make_distance,
    search_bytes,
    search_groups,
    search_spans,
)
from openrlhf_shear.transport.tiles import tiles

EPSILON = 0.015
# Two solves of one problem differ by their tolerance: at most 0.001 eps was measured, 0.002 eps is allowed.
SAME = 2e-3


def sides(kind: str, lengths=(40, 9, 33), window=16, stride=4, d=24, seed=0) -> list[Spans]:
    """Two sides of as many rollouts."""
    both = clouds(kind, (*lengths, *lengths), d, seed)
    return [
        Spans.pack(both[part], SpanCut(window, stride), 1.0)
        for part in (slice(len(lengths)), slice(len(lengths), None))
    ]


def real_sides(window: int, stride: int) -> list[Spans]:
    rollouts = real_states()
    nbar = torch.cat(rollouts).double().norm(dim=1).mean().item()
    return [Spans.pack(rollouts[i::2], SpanCut(window, stride), nbar) for i in range(2)]


def blocks_of(spans: Spans) -> list[slice]:
    return [slice(i, i + n) for i, n in zip(spans.starts.tolist(), spans.sizes.tolist(), strict=True)]


def search(a, b, distance="sinkhorn", backend="numba", epsilon=EPSILON, max_bytes=2**28, prune=True):
    solver = choose_backend(backend, "cpu", 128)
    return search_spans(a, b, make_distance(distance, epsilon, a, b, solver), max_bytes, prune, keep=True)


SOLVED = ("sinkhorn", "wasserstein")  # the others are closed forms, without a backend
EACH = [(name, "numba") for name in DISTANCES] + [(name, "torch") for name in SOLVED]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("distance", "backend"), EACH)
def test_pruned_is_unpruned(distance, kind, backend):
    a, b = sides(kind)
    raced, everything = (search(a, b, distance, backend, prune=prune) for prune in (True, False))
    assert everything.table.solved.all()
    for found, other in ((raced.correct, everything.correct), (raced.incorrect, everything.incorrect)):
        torch.testing.assert_close(found, other, rtol=0, atol=SAME * EPSILON)


class Deterministic(TorchDispatchMode):
    """Refuses what CUDA refuses under `torch.use_deterministic_algorithms`, of the operators that a search may need."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name, kwargs = function.overloadpacket.__name__, kwargs or {}
        of_floats = args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point()
        assert not (name in ("cumsum", "cumsum_", "histc") and of_floats), f"{name} of floats"
        assert name not in ("kthvalue", "put_", "_embedding_bag") and str(function) != "aten.median.dim", name
        return function(*args, **kwargs)


@pytest.mark.parametrize("distance", DISTANCES)
def test_every_distance_runs_with_deterministic_algorithms(distance):
    """`--train.full_determinism_enable` on CUDA, where a search ends at the first operator without a fixed order."""
    a, b = sides("clustered", lengths=(300, 40), window=200, stride=50)
    backend = "torch" if distance in SOLVED else "numba"
    with Deterministic():
        found = search(a, b, distance, backend=backend)
    expected = search(a, b, distance, backend=backend)
    assert torch.equal(found.correct, expected.correct) and torch.equal(found.incorrect, expected.incorrect)
    with pytest.raises(AssertionError, match="cumsum of floats"), Deterministic():
        torch.ones(2).cumsum(0)


def test_means_are_means_of_each_span():
    spans, values = sides("clustered")[0], torch.randn(3, 82, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([values[:, block].double().mean(1) for block in blocks_of(spans)], 1)
    torch.testing.assert_close(spans.means(values), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.05, 0.015, 0.01])
def test_pruned_is_unpruned_on_real_hidden_states_and_most_pairs_are_not_solved(epsilon):
    a, b = real_sides(window=50, stride=10)
    raced, everything = (search(a, b, epsilon=epsilon, prune=prune) for prune in (True, False))
    torch.testing.assert_close(raced.correct, everything.correct, rtol=0, atol=SAME * epsilon)
    torch.testing.assert_close(raced.incorrect, everything.incorrect, rtol=0, atol=SAME * epsilon)
    # Measured: 8 to 11% solved, and 70 to 82% dropped by the bounds alone, without one iteration.
    assert raced.table.solved.float().mean() < 0.15
    assert (raced.table.iterations == 0).float().mean() > 0.5


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("distance", SOLVED)
def test_the_evidence_holds(distance, backend):
    a, b = sides("clustered")
    raced = search(a, b, distance, backend=backend)
    value = search(a, b, distance, backend=backend, prune=False).table.lower_bound
    slack = SAME * EPSILON
    assert (raced.table.lower_bound <= value + slack).all()
    torch.testing.assert_close(
        raced.table.lower_bound[raced.table.solved], value[raced.table.solved], rtol=0, atol=slack
    )
    # Dropped pairs lie beyond the distances of both of their spans.
    beyond = raced.table.lower_bound >= torch.maximum(raced.correct[:, None], raced.incorrect) - slack
    assert beyond[~raced.table.solved].all() and not raced.table.solved.all()
    nearest_incorrect, nearest_correct = (side.nearest for side in raced.sides)
    assert (value.gather(1, nearest_incorrect[:, None])[:, 0] <= value.amin(1) + slack).all()
    assert (value.T.gather(1, nearest_correct[:, None])[:, 0] <= value.amin(0) + slack).all()
    assert raced.table.converged[raced.table.solved].all() and raced.unconverged_fraction == 0
    assert not raced.table.converged[~raced.table.solved].any()


@pytest.mark.parametrize("solver", [SinkhornPairs, NumbaSinkhorn])
@pytest.mark.parametrize("epsilon", [0.05, 0.02, 0.003])
def test_dual_bounds_hold_for_any_potentials(solver, epsilon):
    for kind in KINDS:
        tile = next(tiles(*sides(kind), 2**28))
        value = SinkhornPairs(tile, epsilon).solve(tile.all_pairs()).value.view(len(tile.a), len(tile.b))
        shapes = [(len(s), int(s.sizes.max())) for s in (tile.a, tile.b)]
        for scale in (0.0, 0.1, 3.0):  # the last one is far beyond the range of float32 in units of eps
            f, g = (scale * torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in shapes)
            assert (solver(tile, epsilon).bounds(f, g) <= value + SAME * epsilon).all()


@pytest.mark.parametrize("solver", [SinkhornPairs, NumbaSinkhorn])
@pytest.mark.parametrize("epsilon", [0.05, 0.015, 0.003])
def test_the_first_bounds_are_dual_values_of_one_iteration_and_never_too_large(solver, epsilon):
    for kind in KINDS:
        a, b = sides(kind, lengths=(21, 9))
        tile = next(tiles(a, b, 2**28))
        found = solver(tile, epsilon).bounds().double().numpy()
        costs = torch.cdist(a.tokens.double(), b.tokens.double()).numpy()
        for k, rows in enumerate(blocks_of(a)):
            for other, columns in enumerate(blocks_of(b)):
                block = costs[rows, columns]
                f = -epsilon * (logsumexp(-block / epsilon, axis=1) - math.log(block.shape[1]))
                g = -epsilon * (logsumexp((f[:, None] - block) / epsilon, axis=0) - math.log(len(block)))
                value = f.mean() + g.mean()
                assert f.mean() - 1e-9 <= value <= entropic(block, epsilon) + 1e-9
                # Where a kernel made at once loses entries, its bounds are looser.
                assert found[k, other] <= value + SAME * epsilon
                assert epsilon == 0.003 or found[k, other] == pytest.approx(value, abs=SAME * epsilon)


@pytest.mark.parametrize("solver", [SinkhornPairs, NumbaSinkhorn])
def test_the_first_bounds_need_no_more_memory_than_they_may_take(solver):
    a, b = sides("random", window=8, stride=1)
    roomy, tight = (next(tiles(a, b, size)) for size in (2**28, 2**28))
    tight = replace(tight, max_bytes=2**12)
    for tile in (roomy, tight):
        found = solver(tile, EPSILON).bounds()
        torch.testing.assert_close(found, SinkhornPairs(roomy, EPSILON).bounds(), rtol=0, atol=SAME * EPSILON)


def test_the_bound_of_a_pair_s_own_potentials_is_its_value():
    tile = next(tiles(*sides("random"), 2**28))
    for solver in (SinkhornPairs(tile, EPSILON), NumbaSinkhorn(tile, EPSILON)):
        result = solver.solve(tile.all_pairs(), tolerance=1e-4)
        shape = len(tile.a), len(tile.b)
        f, g = result.f.view(*shape, -1)[:, 0], result.g.view(*shape, -1)[0]
        value, bounds = result.value.view(shape), solver.bounds(f, g)
        torch.testing.assert_close(bounds[:, 0], value[:, 0], rtol=0, atol=SAME * EPSILON)
        torch.testing.assert_close(bounds[0], value[0], rtol=0, atol=SAME * EPSILON)


def test_kernels_beyond_the_range_of_float32_are_solved_by_the_reference():
    a, b = (Spans.pack([p], SpanCut(6, 2), 1.0) for p in islands(12))
    tile = next(tiles(a, b, 2**28))
    reference = SinkhornPairs(tile, 0.002).solve(tile.all_pairs())
    found = NumbaSinkhorn(tile, 0.002).solve(tile.all_pairs())
    assert found.converged.all() and reference.converged.all()
    torch.testing.assert_close(found.value, reference.value, rtol=0, atol=0.01 * 0.002)
    raced = search(a, b, epsilon=0.002)
    torch.testing.assert_close(raced.correct, reference.value.view(len(a), -1).amin(1), rtol=0, atol=0.01 * 0.002)


def test_a_limit_drops_only_pairs_beyond_it():
    tile = next(tiles(*sides("random"), 2**28))
    pairs = tile.all_pairs()
    for solver in (SinkhornPairs(tile, EPSILON), NumbaSinkhorn(tile, EPSILON)):
        value = solver.solve(pairs).value
        limit = value.median().expand(len(pairs)).contiguous()
        result = solver.solve(pairs, limit)
        clear = (value - limit).abs() > SAME * EPSILON
        assert (result.dropped == (value > limit))[clear & ~result.converged].all()
        assert result.converged[clear & (value < limit)].all()
        assert (result.value[result.dropped] >= limit[result.dropped] - 1e-6).all()
        assert (result.value <= value + SAME * EPSILON).all()


def test_unknown_names_are_refused():
    side = Spans.pack([torch.ones(2, 2)], SpanCut(2, 1), 1.0)
    with pytest.raises(ValueError, match="euclid"):
        make_distance("euclid", 0.1, side, side)


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor made."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.bytes = max(self.bytes, out.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize(("distance", "backend"), EACH)
def test_memory_is_bounded_and_the_bound_changes_nothing(distance, backend):
    a, b = sides("random", (230, 5, 171), 16, 12, d=8)
    if distance == "sinkhorn":  # many pairs over few tokens: their potentials are what takes memory
        a, b = sides("random", (110, 5), 16, 1, d=8)
    with LargestTensor() as seen:
        small = search(a, b, distance, backend=backend, epsilon=0.1, max_bytes=2**20)
    whole = search(a, b, distance, backend=backend, epsilon=0.1)
    if distance != "mmd":  # its bandwidth needs a matrix of up to 512 x 512 beside the bound
        assert seen.bytes <= 2**20
    for found, other in zip(small.sides, whole.sides, strict=True):
        torch.testing.assert_close(found.value, other.value, rtol=0, atol=SAME * 0.1)
        if distance in ("chamfer", "cosine"):
            assert torch.equal(found.nearest, other.nearest)


def test_threads_change_nothing():
    a, b = sides("clustered")
    searches = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            searches.append(search(a, b))
        finally:
            torch.set_num_threads(1)
    assert torch.equal(searches[0].correct, searches[1].correct)
    assert torch.equal(searches[0].incorrect, searches[1].incorrect)


@settings(max_examples=30)
@given(st.integers(1, 150), st.integers(1, 150), st.integers(0, 10_000), st.sampled_from([0.05, 0.01]))
def test_numba_agrees_with_the_reference_on_blocks_of_any_shape(n, m, seed, epsilon):
    x, y = clouds("random", (n, m), 12, seed)
    tile = next(tiles(Spans.pack([x], SpanCut(n, 1), 1.0), Spans.pack([y], SpanCut(m, 1), 1.0), 2**28))
    pairs = torch.tensor([[0, 0]])
    found, expected = (solver(tile, epsilon).solve(pairs) for solver in (NumbaSinkhorn, SinkhornPairs))
    assert found.converged.all() and expected.converged.all()
    torch.testing.assert_close(found.value, expected.value, rtol=0, atol=SAME * epsilon)
    plan = ((found.f[0][:, None] + found.g[0] - tile.cost) / epsilon).exp() / (n * m)
    # Exponents of about 100 in float32 are good to 1e-5; the rows are within the solver's tolerance.
    torch.testing.assert_close(plan.sum(0), torch.full((m,), 1 / m), rtol=1e-4, atol=0)
    assert (plan.sum(1) - 1 / n).abs().sum() <= 1.1e-3


class Given:
    """Known distances in place of a solver; unless bounds are given, they are a tenth too low."""

    exact_bounds = False

    def __init__(self, values, bounds=None):
        self.values, self.solves, self.pairs = values, 0, 0
        self.lowest = 0.9 * values if bounds is None else bounds

    def bounds(self, f=None, g=None):
        return self.lowest

    def solve(self, pairs, limits=None):
        self.solves, self.pairs = self.solves + 1, self.pairs + len(pairs)
        value, zeros = self.values[pairs.unbind(1)], torch.zeros(len(pairs))
        dropped = value > limits
        return SinkhornResult(value, zeros[:, None], zeros[:, None], zeros.long(), zeros, ~dropped, dropped)


class HostReads(TorchDispatchMode):
    """Counts what would wait for a CUDA device: shapes that depend on values. (Spans are cut on the CPU.)"""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__
        waits = name.startswith(("nonzero", "_unique2"))
        self.count += waits or (name == "index.Tensor" and any(at.dtype == torch.bool for at in args[1]))
        return function(*args, **kwargs or {})


def test_a_tile_reads_back_only_how_many_pairs_are_left():
    generator = torch.Generator().manual_seed(0)
    values = 1 + torch.rand(80, 60, generator=generator)
    sides = [Spans.pack([torch.randn(n + 9, 4, generator=generator)], SpanCut(10, 1), 1.0) for n in (80, 60)]
    known = Given(values)
    with HostReads() as reads:
        found = search_spans(*sides, lambda tile: known, 2**30)
    assert torch.equal(found.correct, values.amin(1)) and torch.equal(found.incorrect, values.amin(0))
    # The distinct seeds and the pairs that are left; then each turn reads two counts, and turns triple.
    assert reads.count == 2 and 2 < known.solves <= 2 + math.ceil(math.log(80, 3))


def test_a_pair_waits_for_better_pairs_of_its_span():
    """The pairs of one span may have the lowest bounds of all: in that order, all of them would be solved first."""
    generator = torch.Generator().manual_seed(0)
    sides = [Spans.pack([torch.randn(n + 9, 4, generator=generator)], SpanCut(10, 1), 1.0) for n in (80, 60)]
    bounds = torch.arange(80.0)[:, None] + torch.arange(60) / 1000
    values = bounds + 0.5
    values[:, 1] = bounds[:, 1]  # the second best bound of each row is that of the nearest span
    known = Given(values, bounds)
    found = search_spans(*sides, lambda tile: known, 2**30)
    assert torch.equal(found.correct, values.amin(1)) and torch.equal(found.incorrect, values.amin(0))
    assert known.pairs <= 80 + 60 + 80  # a seed of each span, and the second pair of each row


def unlike() -> list[tuple[Spans, Spans]]:
    """Groups of different sizes and kinds; the second has a single pair of spans."""
    shapes = [("random", (40, 9), 16, 4), ("prefix", (7,), 16, 4), ("clustered", (30, 21), 12, 5)]
    return [tuple(sides(kind, lengths, window, stride)) for kind, lengths, window, stride in shapes]


@pytest.mark.parametrize("solver", [SinkhornPairs, NumbaSinkhorn])
@pytest.mark.parametrize(("max_bytes", "batches"), [(2**28, [3]), (80_000, [2, 1]), (2**15, [])])
def test_groups_that_race_together_get_what_each_gets_alone(solver, max_bytes, batches):
    groups, seen = unlike(), []

    def together(tiles):
        seen.append(len(tiles))
        return Together(tiles, lambda tile: solver(tile, EPSILON))

    def alone(tile):
        return solver(tile, EPSILON)

    found = search_groups(groups, alone, together, max_bytes)
    assert [n for n in seen if n > 1] == [n for n in batches if n > 1]
    for (a, b), of_group in zip(groups, found, strict=True):
        expected = search_spans(a, b, alone, max_bytes)
        for side, other in zip(of_group.sides, expected.sides, strict=True):
            assert torch.equal(side.value, other.value) and torch.equal(side.nearest, other.nearest)
        assert of_group.solved_pairs == expected.solved_pairs and of_group.unconverged_pairs == 0


def test_a_nan_bounds_nothing_and_is_nearest_to_no_other_span():
    """A solver that fails on a pair must not spoil the pairs of other spans."""
    values = torch.tensor([[1.0, 2.0], [torch.nan, 4.0], [5.0, 6.0]])
    sides = [Spans.pack([torch.ones(n + 1, 4)], SpanCut(2, 1), 1.0) for n in (3, 2)]
    bounds = torch.full_like(values, torch.nan)
    found = search_spans(*sides, lambda tile: Given(values, bounds), 2**20, prune=False)
    assert found.sides[1].value[1] == 2.0 and found.sides[1].nearest[1] == 0
    assert found.sides[0].value[[0, 2]].tolist() == [1.0, 5.0] and found.sides[0].nearest[[0, 2]].tolist() == [0, 0]


def test_on_cuda_the_memory_of_a_search_is_chosen_once_from_the_free_memory(monkeypatch):
    free = [23 * 2**30, 2**20]
    for name, value in (("mem_get_info", lambda device: (free[0], 0)), ("memory_reserved", lambda device: 2**30),
                        ("memory_allocated", lambda device: 2**29)):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    search_bytes.cache_clear()
    device = torch.device("cuda", 0)
    assert search_bytes(0, device) == 2**32  # a quarter of 23.5 GiB is 5.9
    free.reverse()
    assert search_bytes(0, device) == 2**32 and search_bytes(0, torch.device("cuda", 1)) == 2**27
    assert search_bytes(12345678, device) == 12345678 and search_bytes(0, torch.device("cpu")) == 2**30
    search_bytes.cache_clear()
