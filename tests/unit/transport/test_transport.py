"""The transport room against closed forms, POT in float64, and laws.

Tolerances: W_eps must be within 0.05 eps of the oracle (the contract of the span search). What was measured on these
cases is at most 0.002 eps, so `ACCURACY = 0.01` is asked.
"""

import math

import ot as pot
import pytest
import torch
from clouds import KINDS, clouds, islands, real_states
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import entropic

from openrlhf_shear.config.shear import SpanCut
from openrlhf_shear.transport import geometry, sinkhorn_distance, solve_sinkhorn, span_starts
from openrlhf_shear.transport.geometry import token_costs
from openrlhf_shear.transport.scaling import Scaling
from openrlhf_shear.transport.sinkhorn import log_domain_potentials
from openrlhf_shear.transport.tiles import CostBlocks

ACCURACY = 0.01  # of eps
EPSILONS = (0.05, 0.02, 0.015, 0.01)


def points(kind: str, n: int, m: int, seed: int) -> list[torch.Tensor]:
    return clouds(kind, (n, m), seed=seed)


def batch(*problems: torch.Tensor) -> CostBlocks:
    """Cost matrices of any shapes as one padded batch."""
    n, m = max(len(c) for c in problems), max(c.shape[1] for c in problems)
    cost = torch.full((len(problems), n, m), torch.inf)
    for block, c in zip(cost, problems, strict=True):
        block[: len(c), : c.shape[1]] = c
    return CostBlocks(cost, cost.isfinite().any(2), cost.isfinite().any(1))


def euclidean(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x[:, None].double() - y[None].double()).square().sum(-1).sqrt().float()


@pytest.mark.parametrize("window, stride", [(1, 1), (4, 1), (4, 3), (4, 4), (10, 7)])
def test_spans_cover_and_stop_at_the_first_that_reaches_the_end(window, stride):
    assert span_starts(0, SpanCut(window, stride)).tolist() == []
    for length in range(1, 45):
        expected, start = [0], 0
        while start + window < length:
            start += stride
            expected.append(start)
        assert span_starts(length, SpanCut(window, stride)).tolist() == expected


def test_token_costs_match_differences_and_identical_tokens_cost_nothing():
    x, y = points("prefix", 30, 20, seed=0)
    for offset in (0.0, 1e3):  # far from the origin, the GEMM cancels
        cost = token_costs(x + offset, y + offset, scale=2.0, workspace_bytes=2**20)
        expected = euclidean(x + offset, y + offset) / 2
        torch.testing.assert_close(cost, expected, rtol=1e-5, atol=0)
        assert cost.dtype == torch.float32
        assert (cost.diagonal()[:10] == 0).all()
    # Slices of the hidden size and chunks of recomputed pairs change nothing but the last bits.
    tight = token_costs(x, y, scale=2.0, workspace_bytes=1)
    torch.testing.assert_close(tight, token_costs(x, y, 2.0, 2**20), rtol=1e-6, atol=1e-7)
    assert (tight.diagonal()[:10] == 0).all()


@pytest.mark.parametrize("onednn_from", [0, math.inf])
def test_token_costs_of_real_states_are_right_whatever_the_process_allows_in_products(monkeypatch, onednn_from):
    """1e-5 of the mean norm is 1e-3 of the smallest epsilon in use; at most 5e-6 was measured."""
    monkeypatch.setattr(geometry, "_ONEDNN_WORK", onednn_from)
    x, y = real_states()[:2]
    nbar = x.double().norm(dim=1).mean().item()
    expected = (torch.cdist(x.double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist") / nbar).float()
    for allowed in ("highest", "medium"):  # the latter lets a CPU multiply in bfloat16
        torch.set_float32_matmul_precision(allowed)
        try:
            for states_dtype in (torch.bfloat16, torch.float32, torch.float64):
                cost = token_costs(x.to(states_dtype), y.to(states_dtype), nbar, 2**24)
                torch.testing.assert_close(cost, expected, rtol=0, atol=1e-5)
            assert torch.get_float32_matmul_precision() == allowed
        finally:
            torch.set_float32_matmul_precision("highest")


def test_two_by_two_closed_form():
    # C = [[0, c], [c, 0]]: the plan is [[p, q], [q, p]] with p + q = 1/2 and p / q = exp(c / eps).
    c, epsilon = 0.1, 0.05
    q = 0.5 / (1 + math.exp(c / epsilon))
    p = 0.5 - q
    expected = 2 * q * c + epsilon * 2 * (p * math.log(4 * p) + q * math.log(4 * q))
    x = torch.tensor([[0.0], [c]])
    assert sinkhorn_distance(x, x.flip(0), epsilon).item() == pytest.approx(expected, abs=1e-3 * epsilon)


@pytest.mark.parametrize("kind", KINDS)
def test_values_match_the_oracle(kind):
    shapes = [(8, 8), (8, 5), (3, 8), (16, 16), (20, 24)]  # both sides of the small-block switch, and ragged
    costs = [euclidean(*points(kind, n, m, seed)) for seed, (n, m) in enumerate(shapes)]
    for epsilon in EPSILONS:
        result = solve_sinkhorn(batch(*costs), epsilon)
        assert result.converged.all() and (result.marginal_error <= 1e-3).all()
        expected = [entropic(c.double().numpy(), epsilon) for c in costs]
        assert result.value.numpy() == pytest.approx(expected, abs=ACCURACY * epsilon)


def test_the_plan_has_exact_columns_and_the_marginal_error_reported():
    cost, epsilon = euclidean(*points("clustered", 12, 9, seed=0)), 0.01
    result = solve_sinkhorn(batch(cost), epsilon)
    plan = ((result.f[0][:, None] + result.g[0] - cost) / epsilon).exp() / cost.numel()
    # Exponents of about 100 in float32 are good to 1e-5.
    torch.testing.assert_close(plan.sum(0), torch.full((9,), 1 / 9), rtol=5e-5, atol=0)
    assert (plan.sum(1) - 1 / 12).abs().sum().item() == pytest.approx(result.marginal_error.item(), abs=5e-5)


def test_padding_changes_nothing():
    costs = [euclidean(*points("random", n, m, seed=n)) for n, m in ((4, 9), (9, 4), (1, 1), (9, 9))]
    together = solve_sinkhorn(batch(*costs), 0.02)
    alone = torch.cat([solve_sinkhorn(batch(c), 0.02).value for c in costs])
    torch.testing.assert_close(together.value, alone, rtol=0, atol=1e-3 * 0.02)
    assert (together.f.masked_fill(batch(*costs).rows, 0) == 0).all()


def test_far_clusters_of_unequal_mass_need_the_kernel_built_again():
    cost, epsilon = euclidean(*islands(6)), 0.002
    result = solve_sinkhorn(batch(cost), epsilon)
    f, g, _, _ = log_domain_potentials(batch(cost), epsilon, tolerance=1e-6, max_iterations=20_000)
    assert result.converged.all()
    assert result.value.item() == pytest.approx((f.mean() + g.mean()).item(), abs=ACCURACY * epsilon)


def test_a_problem_that_leaves_float32_is_solved_in_the_log_domain(monkeypatch):
    costs = [euclidean(*points("random", n, m, seed=n)) for n, m in ((8, 8), (5, 7), (4, 8))]
    expected = solve_sinkhorn(batch(*costs), 0.02)
    iterate = Scaling.iterate

    def poisoned(self, iterations):
        self.u[self.index == 1] = torch.nan
        iterate(self, iterations)

    monkeypatch.setattr(Scaling, "iterate", poisoned)
    result = solve_sinkhorn(batch(*costs), 0.02)
    assert result.converged.all()
    torch.testing.assert_close(result.value, expected.value, rtol=0, atol=ACCURACY * 0.02)


def test_an_unfinished_solve_says_so_and_is_a_lower_bound():
    x, y = points("clustered", 16, 16, seed=1)
    cost = euclidean(x, y)
    result = solve_sinkhorn(batch(cost), 0.005, max_iterations=10)
    assert not result.converged.any() and result.marginal_error.item() > 1e-3
    assert result.value.item() <= solve_sinkhorn(batch(cost), 0.005).value.item() + 1e-6
    with pytest.raises(RuntimeError, match="marginal error"):
        sinkhorn_distance(x, y, 0.005 / 200)


@settings(max_examples=25)
@given(st.integers(1, 12), st.integers(0, 10_000), st.sampled_from(EPSILONS))
def test_the_value_lies_between_w1_and_w1_plus_eps_log_n(n, seed, epsilon):
    x, y = points("random", n, n, seed)
    exact = pot.emd2([], [], euclidean(x, y).double().numpy())
    value = sinkhorn_distance(x, y, epsilon).item()
    slack = ACCURACY * epsilon
    assert exact - slack <= value <= exact + epsilon * math.log(n) + slack


@settings(max_examples=25)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 10_000))
def test_symmetry_scaling_and_order(n, m, seed):
    x, y = points("random", n, m, seed)
    value = sinkhorn_distance(x, y, 0.02).item()
    slack = 2 * ACCURACY * 0.02
    assert sinkhorn_distance(y, x, 0.02).item() == pytest.approx(value, abs=slack)
    assert sinkhorn_distance(8 * x, 8 * y, 0.16).item() / 8 == pytest.approx(value, abs=1e-6)
    assert sinkhorn_distance(x.flip(0), y.roll(1, 0), 0.02).item() == pytest.approx(value, abs=slack)


@pytest.mark.parametrize(
    "x, y, epsilon, message",
    [
        (torch.zeros(3), torch.zeros(3, 2), 0.1, "got"),
        (torch.zeros(2, 3), torch.zeros(2, 4), 0.1, r"\(2, 4\)"),
        (torch.zeros(0, 3), torch.zeros(2, 3), 0.1, "at least 1"),
        (torch.zeros(1, 3), torch.zeros(2, 3), 0.0, "epsilon"),
    ],
)
def test_wrong_input_is_refused(x, y, epsilon, message):
    with pytest.raises(ValueError, match=message):
        sinkhorn_distance(x, y, epsilon)


@pytest.mark.parametrize("here", [(90, 10), (67, 33), (99, 50), (99, 1)])
@pytest.mark.parametrize("apart", [60, 80, 94, 160, 300])
def test_a_pair_that_is_dropped_exceeds_its_limit_however_far_the_scalings_drift(here, apart):
    """Two clusters `apart` eps, with these percentages of each side in the first: scalings drift by e^40 at once.

    A bound is at most W_eps, and costs are rounded by 1e-5 eps.
    """
    cost = torch.full((100, 100), float(apart))
    cost[: here[0], : here[1]] = cost[here[0] :, here[1] :] = 0
    oracle = entropic(cost.double().numpy(), 1.0)
    blocks, limit = batch(cost), torch.tensor([oracle + 0.1], dtype=torch.float32)
    whole = solve_sinkhorn(blocks, 1.0, limits=limit)
    assert (
        bool(whole.converged) and not bool(whole.dropped) and whole.value.item() == pytest.approx(oracle, abs=ACCURACY)
    )
    for most in (10, 20, 30):
        assert solve_sinkhorn(blocks, 1.0, max_iterations=most).value.item() <= oracle + 1e-4
