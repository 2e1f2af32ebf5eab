"""How weights find the first error: against loops over tokens, by hand, and planted effects with their controls."""

import numpy as np
import pytest
from diagnosis_tables import drawn_rollouts, rollout

from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.rollouts.localisation import (
    Trace,
    first_errors,
    largest_near,
    random_split_auc,
    split_auc,
    traces_of,
)

FEW = Bootstrap(20)


def slow_auc(after, before):
    won = [(a > b) + (a == b) / 2 for a in after for b in before]
    return sum(won) / len(won)


def drawn_weights(seed, n):
    return np.random.default_rng(seed).integers(0, 6, n) / 5


@pytest.mark.parametrize("seed", range(2))
def test_splits_against_loops(seed):
    weights = drawn_weights(seed, 11 + seed)
    aucs = [slow_auc(weights[split:], weights[:split]) for split in range(1, len(weights))]
    assert [split_auc(weights, split) for split in range(1, len(weights))] == pytest.approx(aucs)
    assert random_split_auc(weights) == pytest.approx(np.mean(aucs))
    assert np.isnan([split_auc(weights, 0), split_auc(weights, len(weights)), random_split_auc([1.0])]).all()


def test_a_drawn_largest_weight_of_equal_weights_is_a_random_token():
    hit, chance = largest_near([0.5] * 9, 2, 3)
    assert hit == chance == 6 / 9
    assert largest_near([0, 1, 0, 0, 1, 1], 0, 1) == (pytest.approx(1 / 3), pytest.approx(2 / 6))
    assert largest_near([0, 1, 2], 7, 1) == (0, 0)  # an error that was never written
    assert np.isnan(largest_near([], 0, 1)).all()


def test_two_groups_by_hand():
    traces = [
        Trace("a", False, [1, 2, 3, 4], 2),
        Trace("a", True, [1, 3, 2, 2, 9], None),
        Trace("a", True, [5, 0, 1], 1),  # lucky
        Trace("b", False, [4, 1, 1, 1, 1], 1),
        Trace("b", True, [2], None),
        Trace("b", False, [7, 8], 0),  # wrong from its first token
        Trace("b", False, [7, 8], 2),  # never written
    ]
    found = first_errors(traces, 2, FEW)
    assert (found.rollouts, found.truncated) == (2, 2)
    assert (found.auc.value, found.auc.problems, found.auc.rows) == (0.5, 2, 2)  # 1 and 0
    random = [random_split_auc(trace.weights) for trace in (traces[0], traces[3])]
    assert found.auc_random.value == pytest.approx(np.mean(random))
    assert found.auc_lead.value == pytest.approx(0.5 - np.mean(random))
    # [2, 2, 9] over [1, 3]: 4 of 6; the correct rollout of b has no token from index 1 on
    assert (found.auc_control.value, found.auc_control.rows) == (pytest.approx(4 / 6), 1)
    assert (found.hit.value, found.hit_chance.value) == (pytest.approx(1), pytest.approx((3 / 4 + 3 / 5) / 2))
    assert found.hit_window_chance.value == pytest.approx((1 + 4 / 5) / 2)
    assert found.auc_pooled.value == pytest.approx(slow_auc([3, 4, 1, 1, 1, 1], [1, 2, 4]))
    profile = {point.offset: (point.omega.value, point.control.value) for point in found.profile}
    assert profile == {
        -2: (1, 1),  # b has no token there
        -1: (3, 2.5),  # 2 and 4; 3 and 2
        0: (2, 2),  # 3 and 1; b's correct rollout has ended
        1: (2.5, 2),
        2: (1, 9),  # a has ended, its correct rollout has not
    }


@pytest.mark.parametrize("seed", range(3))
def test_matched_against_loops(seed):
    rng = np.random.default_rng(seed)
    traces = []
    for i in range(12):
        correct, tokens = bool(rng.integers(2)), int(rng.integers(3, 9))
        error = None if correct and rng.random() < 0.6 else int(rng.integers(0, tokens + 1))
        traces.append(Trace(f"g{i // 4}", correct, drawn_weights(rng.integers(1000), tokens).tolist(), error))
    won = pairs = 0.0
    for trace in traces:
        for other in traces:
            for t in range(min(len(trace.weights), len(other.weights))):
                wrong = not trace.correct and trace.first_error <= t
                right = other.first_error is None or t < other.first_error
                if wrong and right:
                    pairs += 1
                    won += slow_auc([trace.weights[t]], [other.weights[t]])
    assert first_errors(traces, 2, FEW).auc_matched.value == pytest.approx(won / pairs)


def test_the_same_problem_counts_once_in_the_interval():
    traces = traces_of(drawn_rollouts(np.random.default_rng(2), groups=25, jump=0.1))
    once, often = first_errors(traces, 3, FEW), first_errors(traces * 3, 3, FEW)
    for what, estimate in once.numbers.items():
        assert often.numbers[what].shown == pytest.approx(estimate.shown), what
        assert (often.numbers[what].problems, often.numbers[what].rows) == (estimate.problems, 3 * estimate.rows)


def test_what_can_be_measured():
    rollouts = [
        rollout("a", 0, True, [1.0, 1.0]),
        rollout("a", 1, False, [1.0, 2.0], first_error=1),
        rollout("a", 2, False, [1.0, 1.0], first_error=1, span_distances=[float("inf")]),  # hidden states not finite
        rollout("a", 3, None, [1.0, 1.0]),
        rollout("b", 0, True, [1.0, 1.0]),  # not mixed
        rollout("c", 0, True),
        rollout("c", 1, False, first_error=1),  # no weights
    ]
    assert traces_of(rollouts) == [Trace("a", True, [1.0, 1.0], None), Trace("a", False, [1.0, 2.0], 1)]
    nothing = first_errors([], 2, FEW)
    assert nothing.rollouts == 0 and all(estimate.value is None for estimate in nothing.numbers.values())
