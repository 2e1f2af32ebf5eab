"""`shear_weights` against a slow float64 oracle that follows the design to the letter and shares no code with it.

Contract of the search: every span's distance is within 0.05 eps of an oracle that solves every opposing pair. On these
groups at most 0.003 eps was measured (real states: 0.0009), so the tests ask for 0.01 eps. The oracle runs to a
marginal error of 1e-9.
"""

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import ot as pot
import pytest
import torch
from clouds import KINDS, clouds, real_states
from oracle import entropic

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.config.shear import DISTANCES, NORMALIZATIONS, POOLS, SpanCut
from openrlhf_shear.credit import shear_weights
from openrlhf_shear.kernels.backends import choose_backend
from openrlhf_shear.kernels.numba_sinkhorn import NumbaSinkhorn
from openrlhf_shear.transport import SinkhornPairs, Spans, span_starts
from openrlhf_shear.transport.tiles import tiles

EPSILONS = (0.05, 0.02, 0.015, 0.01)
ACCURACY = 0.01  # of eps
SMALL = {"window": 6, "stride": 3}
MIXED = [True, False, True, False]


def oracle_distance(name: str, x: np.ndarray, y: np.ndarray, epsilon: float, sigma: float) -> float:
    cost = np.array([[math.sqrt(((p - q) ** 2).sum()) for q in y] for p in x])
    if name == "wasserstein":
        return pot.emd2([], [], cost)
    if name == "chamfer":
        return (np.mean([min(row) for row in cost]) + np.mean([min(column) for column in cost.T])) / 2
    if name == "cosine":
        p, q = x.mean(0), y.mean(0)
        return 1 - p @ q / math.sqrt(p @ p) / math.sqrt(q @ q)
    if name == "mmd":

        def mean_kernel(u, v):
            return np.mean([[math.exp(-((p - q) ** 2).sum() / (2 * sigma**2)) for q in v] for p in u])

        return math.sqrt(max(0.0, mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)))
    return entropic(cost, epsilon)


def oracle_bandwidth(rollouts) -> float:
    """Of mmd: the (lower) median distance between two tokens."""
    tokens = [token for h in rollouts for token in h]
    gaps = sorted(math.sqrt(((p - q) ** 2).sum()) for i, p in enumerate(tokens) for q in tokens[:i])
    return gaps[(len(gaps) - 1) // 2]


def oracle_spans(length: int, window: int, stride: int, tail: str = "one") -> list[tuple[int, int]]:
    spans, start = [], 0
    while start < length:
        spans.append((start, min(start + window, length)))
        if tail == "one" and start + window >= length:
            break
        start += stride
    return spans


def oracle(hidden, correct, window=6, stride=3, epsilon=0.015, distance="sinkhorn", normalize="cross_rollout",
           pool="max", tail="one"):  # fmt: skip
    """Weights and span distances of a group whose rollouts are finite and on both sides; epsilon in units of nbar."""
    hidden = [h.double().numpy() for h in hidden]
    nbar = np.mean([math.sqrt((token**2).sum()) for h in hidden for token in h])
    scaled = [h / nbar for h in hidden]
    sigma = oracle_bandwidth(scaled) if distance == "mmd" else None
    weights, distances = [], []
    for i, h in enumerate(scaled):
        to_spans = []
        for start, end in oracle_spans(len(h), window, stride, tail):
            found = [
                oracle_distance(distance, h[start:end], other[s:e], epsilon, sigma)
                for j, other in enumerate(scaled)
                if correct[j] != correct[i]
                for s, e in oracle_spans(len(other), window, stride, tail)
            ]
            to_spans.append(min(found))
        distances.append(to_spans)
        covering = [
            [d for d, (s, e) in zip(to_spans, oracle_spans(len(h), window, stride, tail), strict=True) if s <= t < e]
            for t in range(len(h))
        ]
        weights.append([max(ds) if pool == "max" else np.mean(ds) for ds in covering])
    if normalize == "per_rollout":
        mean = np.mean([w for rollout in weights for w in rollout])
        weights = [[w * mean / np.mean(rollout) for w in rollout] for rollout in weights]
    if normalize == "none" and distance not in ("cosine", "mmd"):
        weights = [[w * nbar for w in rollout] for rollout in weights]
    return weights, distances


def group(kind: str = "random", lengths=(10, 7, 4, 9), seed: int = 0) -> list[torch.Tensor]:
    return [14 * h for h in clouds(kind, lengths, seed=seed)]  # so that nbar matters


def assert_close(result, expected, atol: float) -> None:
    weights, distances = expected
    assert result.converged
    for found, want in zip([*result.weights, *result.span_distances], [*weights, *distances], strict=True):
        assert found.dtype == torch.float32
        assert found.tolist() == pytest.approx(want, abs=atol)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_worked_example(epsilon):
    states = [torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[3.0, 4.0, 0.0]])]
    result = shear_weights(states, [True, False], ShearConfig(epsilon_rel=epsilon))
    assert result.mean_norm == 2.5
    assert [w.tolist() for w in result.weights] == [[2.0], [2.0]]
    assert [s.tolist() for s in result.span_starts] == [[0], [0]]
    assert result.opposed and result.converged and result.nonfinite == [False, False]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_paper_rule_matches_the_oracle(kind, epsilon):
    hidden = group(kind)
    expected = oracle(hidden, MIXED, epsilon=epsilon)
    for backend in ("torch", "numba"):
        result = shear_weights(hidden, MIXED, ShearConfig(**SMALL, epsilon_rel=epsilon), SearchConfig(backend=backend))
        assert_close(result, expected, ACCURACY * epsilon)


@pytest.mark.parametrize("epsilon", [0.05, 0.01])
def test_real_hidden_states_match_the_oracle(epsilon):
    hidden, spans = [h[: 80 + 7 * i] for i, h in enumerate(real_states()[:4])], {"window": 40, "stride": 30}
    expected = oracle(hidden, MIXED, epsilon=epsilon, **spans)
    for backend in ("torch", "numba"):
        result = shear_weights(hidden, MIXED, ShearConfig(**spans, epsilon_rel=epsilon), SearchConfig(backend=backend))
        assert_close(result, expected, ACCURACY * epsilon)


def test_the_paper_s_spans_on_real_hidden_states():
    """100 x 100 tokens; three pairs, since the oracle takes its time."""
    h, epsilon, pairs, expected = real_states()[:2], 0.015, torch.tensor([[0, 0], [1, 2], [3, 1]]), []
    nbar = torch.cat(h).double().norm(dim=1).mean().item()
    tile = next(tiles(*(Spans.pack([x], SpanCut(100, 25), nbar) for x in h), 2**28))
    for starts in (25 * pairs).tolist():
        x, y = (of[start : start + 100].double().numpy() / nbar for of, start in zip(h, starts, strict=True))
        expected.append(entropic(np.sqrt(((x[:, None] - y) ** 2).sum(-1)), epsilon))
    for solver in (SinkhornPairs, NumbaSinkhorn):
        result = solver(tile, epsilon).solve(pairs)
        assert result.converged.all()
        assert result.value.tolist() == pytest.approx(expected, abs=ACCURACY * epsilon)


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("distance", DISTANCES)
def test_every_distance_and_normalisation_matches_the_oracle(distance, normalize):
    hidden = group(lengths=(9, 5, 4))
    correct = [False, True, False]
    config = ShearConfig(**SMALL, epsilon_rel=0.05, distance=distance, normalize=normalize)
    result = shear_weights(hidden, correct, config)
    # Closed forms in float32 (float64 for mmd and cosine) and exact solves: 1e-5 (mmd's root magnifies 1e-7 where it
    # is small, which it is not here). Raw units are nbar = 14.5 times larger.
    atol = ACCURACY * 0.05 if "sinkhorn" in distance else 1e-5
    expected = oracle(hidden, correct, epsilon=0.05, distance=distance, normalize=normalize)
    assert_close(result, expected, atol * (16 if normalize == "none" else 1))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("distance", ["sinkhorn", "chamfer"])
def test_every_pool_matches_the_oracle(distance, pool):
    hidden = group("clustered", lengths=(13, 8, 4))
    correct = [False, True, True]
    config = ShearConfig(**SMALL, epsilon_rel=0.05, pool=pool, distance=distance)
    expected = oracle(hidden, correct, epsilon=0.05, pool=pool, distance=distance)
    assert_close(shear_weights(hidden, correct, config), expected, ACCURACY * 0.05)


def test_lengths_around_the_window_and_the_span_boundaries():
    lengths = (1, 5, 6, 7, 9, 10)  # T < w, T == w, and one more than a boundary; every token is covered
    hidden, correct = group(lengths=lengths), [True, False] * 3
    result = shear_weights(hidden, correct, ShearConfig(**SMALL, epsilon_rel=0.05, distance="chamfer"))
    assert [s.tolist() for s in result.span_starts] == [[0], [0], [0], [0, 3], [0, 3], [0, 3, 6]]
    assert_close(result, oracle(hidden, correct, distance="chamfer"), 1e-5)


@pytest.mark.parametrize("distance", ["sinkhorn", "chamfer"])
def test_a_span_at_every_start_matches_the_oracle(distance):
    """The last of them are one to three tokens long; 1 is a rollout shorter than the stride."""
    hidden, correct = group(lengths=(10, 7, 1, 9)), MIXED
    config = ShearConfig(**SMALL, epsilon_rel=0.05, distance=distance, tail="every")
    expected = oracle(hidden, correct, epsilon=0.05, distance=distance, tail="every")
    for backend in ("torch", "numba"):
        result = shear_weights(hidden, correct, config, SearchConfig(backend=backend))
        assert [s.tolist() for s in result.span_starts] == [[0, 3, 6, 9], [0, 3, 6], [0], [0, 3, 6]]
        assert_close(result, expected, ACCURACY * 0.05)
    assert not torch.equal(result.weights[0], shear_weights(hidden, correct, replace(config, tail="one")).weights[0])


def test_an_empty_rollout_has_no_weights_and_opposes_nothing():
    hidden = group(lengths=(8, 0, 7, 9))
    result = shear_weights(hidden, MIXED, ShearConfig(**SMALL))
    without = shear_weights([hidden[i] for i in (0, 2, 3)], [True, True, False], ShearConfig(**SMALL))
    assert result.weights[1].shape == result.span_starts[1].shape == result.span_distances[1].shape == (0,)
    assert result.opposed and result.mean_norm == pytest.approx(without.mean_norm)
    for i, j in ((0, 0), (2, 1), (3, 2)):
        torch.testing.assert_close(result.weights[i], without.weights[j])
    alone = shear_weights(hidden[:2], [True, False])
    assert not alone.opposed and (alone.weights[0] == 1).all()


@pytest.mark.parametrize("outcome", [True, False])
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_without_an_opposing_rollout_weights_are_one(outcome, normalize):
    result = shear_weights(group(), [outcome] * 4, ShearConfig(**SMALL, normalize=normalize))
    assert all((w == 1).all() for w in result.weights) and [len(w) for w in result.weights] == [10, 7, 4, 9]
    assert all((d == torch.inf).all() for d in result.span_distances)
    assert not result.opposed and result.converged and result.unconverged_fraction == 0 and result.mean_norm > 0


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e19])  # a float32 square of 1e19 is almost infinite
def test_a_rollout_that_is_not_finite_is_left_out(bad, normalize):
    hidden, config = group(lengths=(8, 7, 6, 9)), ShearConfig(**SMALL, normalize=normalize)
    without = shear_weights([hidden[i] for i in (0, 1, 3)], [True, False, False], config)
    hidden[2][3, 5] = bad
    result = shear_weights(hidden, MIXED, config)
    assert result.nonfinite == [False, False, True, False] and result.mean_norm == without.mean_norm
    assert (result.weights[2] == 1).all() and (result.span_distances[2] == torch.inf).all()
    for i, j in ((0, 0), (1, 1), (3, 2)):
        torch.testing.assert_close(result.weights[i], without.weights[j])
    hidden[0][0, 0] = bad  # no correct rollout is left
    result = shear_weights(hidden, MIXED, config)
    assert not result.opposed and all((w == 1).all() for w in result.weights)


@pytest.mark.parametrize("distance", DISTANCES)
def test_hidden_states_of_zero_give_weights_of_one(distance):
    result = shear_weights([torch.zeros(8, 4), torch.zeros(3, 4)], [True, False], ShearConfig(distance=distance))
    assert result.mean_norm == 0 and all((w == 1).all() for w in result.weights)
    tiny = shear_weights(
        [torch.full((8, 4), 1e-20), torch.full((3, 4), 2e-20)], [True, False], ShearConfig(distance=distance)
    )
    assert all((w == 1).all() for w in tiny.weights), "the squares are 0 in float32"


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_identical_rollouts_have_finite_weights(distance, normalize):
    tokens = group(lengths=(6,))[0]
    result = shear_weights([tokens, tokens], [True, False], ShearConfig(distance=distance, normalize=normalize))
    if distance in ("wasserstein", "chamfer", "cosine", "mmd"):
        assert torch.cat(result.weights).abs().max() < 1e-6
    assert torch.cat(result.weights).isfinite().all()


@pytest.mark.parametrize("distance", DISTANCES)
def test_weights_do_not_depend_on_the_scale(distance):
    hidden, config = group("clustered"), ShearConfig(**SMALL, distance=distance)
    weights = shear_weights(hidden, MIXED, config).weights
    for scale in (8.0, 1e-3, 1e6):
        scaled = shear_weights([scale * h for h in hidden], MIXED, config).weights
        # Rounding of the scaled states can move a stopping decision, and with it a solve by what its tolerance allows.
        torch.testing.assert_close(torch.cat(scaled), torch.cat(weights), rtol=0, atol=2 * ACCURACY * 0.015)


def test_an_absolute_epsilon_wins_over_the_relative_one():
    hidden = group()
    nbar = shear_weights(hidden, MIXED).mean_norm
    absolute = shear_weights(hidden, MIXED, ShearConfig(**SMALL, epsilon=0.3 * nbar, epsilon_rel=0.01))
    relative = shear_weights(hidden, MIXED, ShearConfig(**SMALL, epsilon_rel=0.3))
    torch.testing.assert_close(torch.cat(absolute.weights), torch.cat(relative.weights), rtol=1e-5, atol=0)
    other = shear_weights(hidden, MIXED, ShearConfig(**SMALL, epsilon_rel=0.01))
    assert (torch.cat(other.weights) - torch.cat(relative.weights)).abs().max() > 0.05


def test_bfloat16_and_states_that_need_gradients_give_plain_weights_of_the_same_numbers():
    hidden = [h.bfloat16() for h in group()]
    weights = shear_weights([h.clone().requires_grad_() for h in hidden], MIXED, ShearConfig(**SMALL)).weights
    same = shear_weights([h.float() for h in hidden], MIXED, ShearConfig(**SMALL)).weights
    assert all(w.dtype == torch.float32 and not w.requires_grad for w in weights)
    torch.testing.assert_close(torch.cat(weights), torch.cat(same), rtol=1e-6, atol=0)


def test_autocast_and_the_default_dtype_change_nothing():
    hidden, config = group("clustered"), ShearConfig(**SMALL)
    weights = torch.cat(shear_weights(hidden, MIXED, config).weights)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = torch.cat(shear_weights(hidden, MIXED, config).weights)
    finally:
        torch.set_default_dtype(torch.float32)
    assert inside.dtype == torch.float32 and inside.equal(weights)


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_an_unfinished_search_says_so(monkeypatch, backend):
    solver = choose_backend(backend, "cpu", SMALL["window"])
    monkeypatch.setattr(solver, "solve", functools.partialmethod(solver.solve, max_iterations=10))
    result = shear_weights(
        group("clustered"), MIXED, ShearConfig(**SMALL, epsilon_rel=0.002), SearchConfig(backend=backend)
    )
    assert 0 < result.unconverged_fraction <= 1 and not result.converged
    assert torch.cat(result.weights).isfinite().all()


@pytest.mark.parametrize(
    "hidden, correct, message",
    [
        ([torch.zeros(2, 3)], [True, False], "1 rollouts, 2 outcomes"),
        ([], [], "at least one"),
        ([torch.zeros(3)], [True], r"rollout 0 is torch.float32 of shape \(3,\)"),
        ([torch.zeros(2, 3, dtype=torch.int64)], [True], "torch.int64"),
        ([torch.zeros(2, 3), torch.zeros(2, 4)], [True, False], "hidden size: got 3, 4"),
        ([torch.zeros(2, 3)] * 2, [1.0, 0.0], "True, False or None: rollout 0 has 1.0; use score >= threshold"),
        ([torch.zeros(2, 3)] * 2, [True, 0], "rollout 1 has 0"),
        ([torch.zeros(2, 3)] * 2, ["yes", "no"], "rollout 0 has 'yes'"),
        ([np.zeros((2, 3), dtype=np.int64)], [True], "torch.int64"),
    ],
)
def test_wrong_input_is_refused(hidden, correct, message):
    with pytest.raises(ValueError, match=message):
        shear_weights(hidden, correct)


@pytest.mark.parametrize("outcomes", [np.array([True, False]), torch.tensor([True, False]), [np.True_, np.False_]])
def test_numpy_arrays_do_as_well(outcomes):
    states = [np.float32([[0, 0]]), np.float32([[3, 4]])]
    assert torch.cat(shear_weights(states, outcomes).weights).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("most", "counts"), [(0, [16, 3]), (16, [16, 3]), (15, [11, 3]), (6, [6, 3]), (3, [4, 3]), (1, [4, 2])]
)
def test_a_longer_rollout_has_a_larger_stride_and_every_token_a_span(most, counts):
    """40 and 14 tokens in spans of 10, every 2 tokens or further apart, but not further than a span is long."""
    result = shear_weights(group(lengths=(40, 14)), [True, False], ShearConfig(window=10, stride=2, max_spans=most))
    assert [len(starts) for starts in result.span_starts] == counts
    for starts, length in zip(result.span_starts, (40, 14), strict=True):
        covered = {token for start in starts.tolist() for token in range(start, min(start + 10, length))}
        assert covered == set(range(length))
    given = [ShearConfig(window=10, stride=stride) for stride in {16: (2,), 6: (6,)}.get(most, ())]
    for config in given:  # the same spans, so the same weights, of the rollout whose stride it is
        same = shear_weights(group(lengths=(40, 14)), [True, False], config).span_starts[0]
        assert torch.equal(result.span_starts[0], same)


@pytest.mark.parametrize(("most", "expected"), [(0, 20), (20, 20), (19, 14), (8, 8), (4, 4), (1, 4)])
def test_the_most_spans_hold_with_a_span_at_every_start_too(most, expected):
    """40 tokens in spans of 10, at 0, 2, ..., 38, or further apart, but not further than a span is long."""
    starts = span_starts(40, SpanCut(10, 2, most, "every")).tolist()
    strides = {b - a for a, b in itertools.pairwise(starts)}
    assert len(starts) == expected and len(strides) == 1 and max(strides) <= 10
    assert starts[0] == 0 and 40 - max(strides) <= starts[-1] < 40


def test_a_rollout_whose_weights_are_all_0_gets_the_group_s_mean_per_rollout():
    same = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    far = torch.tensor([[9.0, 0.0]])
    config = ShearConfig(window=2, stride=2, distance="wasserstein")
    states, outcomes = [same, same, far], [True, False, True]
    plain = shear_weights(states, outcomes, config).weights
    assert not plain[0].any() and not plain[1].any() and plain[2].all(), "or this shows nothing"
    mean = torch.cat(plain).mean().item()
    made = shear_weights(states, outcomes, replace(config, normalize="per_rollout")).weights
    assert torch.cat(made).tolist() == pytest.approx([mean] * 5, rel=1e-6)


def test_the_bandwidth_of_mostly_equal_tokens_is_the_mean_of_the_positive_distances():
    # 5 tokens at 0 and one at 5: 10 of 15 distances are 0, so the median is 0
    a, b = torch.zeros(3, 2), torch.cat([torch.zeros(2, 2), torch.tensor([[3.0, 4.0]])])
    result = shear_weights([a, b], [True, False], ShearConfig(window=3, stride=3, distance="mmd"))
    # sigma = 5 = any positive distance, so k = exp(-1/2) between the odd token and the others
    k = math.exp(-0.5)
    within = (4 + 1 + 4 * k) / 9
    expected = math.sqrt(1 + within - 2 * (2 + k) / 3)
    assert torch.cat(result.weights).tolist() == pytest.approx([expected] * 6, rel=1e-5)


def test_a_transport_that_pot_did_not_finish_is_not_called_converged(monkeypatch):
    real = pot.emd2

    def unfinished(*given, **how):
        value, log = real(*given, **how)
        return value, log | {"warning": "numItermax reached before optimality."}

    monkeypatch.setattr(pot, "emd2", unfinished)
    states = [torch.randn(6, 4, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    result = shear_weights(states, [True, False], ShearConfig(window=3, stride=3, distance="wasserstein"))
    assert result.unconverged_fraction == 1.0 and not result.converged
