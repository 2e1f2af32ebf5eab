"""Contrast of token weights: by hand, and against loops over rollouts of random weights."""

import random
from statistics import fmean

import pytest

from openrlhf_shear.lab.contrast import contrast
from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.rollouts.localisation import Trace

FEW = Bootstrap(20)


def both(traces):
    found = contrast(traces, FEW)
    return found.last_first.value, found.wrong_right.value


def test_quarters_and_outcomes_by_hand():
    right = Trace("p", True, [1, 5, 5, 2], None)
    wrong = Trace("p", False, [3, 9, 9, 9, 9, 9, 6, 6], 2)  # quarters of two tokens: 3 and 9 first, 6 and 6 last
    assert both([right, wrong]) == pytest.approx(((2 + 6 + 6) / 3 / ((1 + 3 + 9) / 3), (60 / 8) / (13 / 4)))


def test_equal_weights_have_no_contrast():
    assert both([Trace("p", side, [0.3] * 7, None) for side in (True, False)]) == pytest.approx((1, 1))


def test_what_is_missing_is_not_defined():
    found = contrast([Trace("p", True, [0.0, 0.0], None), Trace("p", False, [], None)], FEW)
    assert found.last_first.value is None and "a token with a positive weight" in found.last_first.warning
    assert found.wrong_right.value is None
    assert contrast([], FEW).last_first.value is None


def test_a_loop_agrees_and_the_interval_is_of_problems():
    rng = random.Random(0)
    traces = [
        Trace(f"p{i // 4}", i % 4 < 2, [rng.random() + t / 50 for t in range(rng.randint(1, 30))], None)
        for i in range(80)
    ]
    first, last, sides = [], [], {True: [], False: []}
    for trace in traces:
        for t, weight in enumerate(trace.weights):
            if t / len(trace.weights) < 0.25:
                first.append(weight)
            if t / len(trace.weights) >= 0.75:
                last.append(weight)
        sides[trace.correct].append(fmean(trace.weights))
    expected = fmean(last) / fmean(first), fmean(sides[False]) / fmean(sides[True])
    # Sums of some hundred float64 numbers around 1, in another order.
    assert both(traces) == pytest.approx(expected, rel=1e-12)
    found = contrast(traces, Bootstrap(200))
    for each in (found.last_first, found.wrong_right):
        assert each.low < each.value < each.high and each.problems == 20
    assert found.last_first.paper == pytest.approx(1.12, abs=0.005)
