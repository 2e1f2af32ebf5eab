"""The contrast of weights against plain loops, its interval too."""

import numpy as np
import pytest

from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.rollouts.localisation import Trace, contrast


def drawn(rng, problems=12, rollouts=5) -> list[Trace]:
    """Rollouts of 1 to 30 tokens, among them some of a single token; weights rise, and are larger where it is wrong."""
    made = []
    for problem in range(problems):
        for sample in range(rollouts):
            length = 1 if sample == 2 and problem % 3 == 0 else int(rng.integers(2, 30))
            wrong = bool(rng.integers(2))
            weights = [(1 + t / length) * (1.5 if wrong else 1.0) + rng.normal(0, 0.1) for t in range(length)]
            made.append(Trace(f"p{problem}", not wrong, weights, None))
    return made


def oracle(traces) -> tuple[float, float]:
    """Both ratios by loops; NaN without a mean."""
    sums = {"first": [], "last": [], True: [], False: []}
    for trace in traces:
        quarters = {"first": [], "last": []}
        for t, weight in enumerate(trace.weights):
            if 4 * (t + 0.5) <= len(trace.weights):
                quarters["first"].append(weight)
            if 4 * (t + 0.5) >= 3 * len(trace.weights):
                quarters["last"].append(weight)
        for name, values in quarters.items():
            if values:
                sums[name].append(sum(values) / len(values))
        sums[trace.correct].append(sum(trace.weights) / len(trace.weights))
    mean = {name: sum(values) / len(values) if values else float("nan") for name, values in sums.items()}
    return mean["last"] / mean["first"], mean[False] / mean[True]


def test_ratios_and_their_intervals_are_those_of_loops_over_repeated_problems():
    traces = drawn(np.random.default_rng(0))
    found = contrast(traces, Bootstrap(40, 3))
    # both sum float64 of the same values, in another order
    assert [estimate.value for estimate in found.values()] == pytest.approx(oracle(traces), rel=1e-12)
    resampled = []
    for times in Bootstrap(40, 3).draws(12):
        resampled.append(oracle([trace for trace in traces for _ in range(int(times[int(trace.group[1:])]))]))
    for estimate, values in zip(found.values(), np.transpose(resampled), strict=True):
        assert (estimate.low, estimate.high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])), rel=1e-12)
    ends, sides = found.values()
    assert (ends.rows, sides.rows, ends.paper, sides.paper) == (56, 60, 1.12, None)  # 4 have a single token
    assert ends.value > 1.4 and sides.value > 1.3  # as drawn: about 1.88 / 1.12, and 1.5


def test_equal_weights_have_no_contrast_and_what_is_missing_is_said():
    even = [Trace("a", True, [0.3] * 7, None), Trace("b", False, [0.3] * 9, None)]
    assert [estimate.value for estimate in contrast(even, Bootstrap(5)).values()] == pytest.approx([1, 1], rel=1e-12)
    found = contrast([Trace("a", True, [2.0], None), Trace("a", True, [], None)], Bootstrap(5))
    assert found.last_first.warning == "not defined: it needs responses of two tokens or more"
    assert found.wrong_right.warning == "not defined: it needs both outcomes"
    assert contrast([], Bootstrap(5)).wrong_right.value is None
