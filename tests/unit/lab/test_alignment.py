"""Rank correlations of credit with true advantages, and what they predict: against scipy, in loops."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from openrlhf_shear.lab.alignment import alignment, prediction
from openrlhf_shear.lab.pictures import prediction_picture
from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.report.estimates import paired
from openrlhf_shear.report.figures import render
from openrlhf_shear.report.findings import Omission

FEW = Bootstrap(100, 3)


def rollouts(seed, number=24):
    """Advantages with many zeros, credit with ties, four rollouts a group, some of either with nothing to rank."""
    rng = np.random.default_rng(seed)
    advantages = [rng.normal(size=n) * (rng.random(n) < 0.3) for n in rng.integers(5, 40, number)]
    credit = [(0.5 * row + rng.normal(size=len(row))).round(1) for row in advantages]
    advantages[3], credit[5] = np.zeros(7), np.full(len(credit[5]), -0.5)
    credit[3] = np.arange(7.0)
    return advantages, credit, [str(i // 4) for i in range(number)], [i % 3 == 0 for i in range(number)]


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_the_correlation_is_the_mean_of_scipy_s_over_rollouts_with_something_to_rank():
    advantages, credit, groups, correct = rollouts(0)
    rhos = {}
    for i, (truth, given) in enumerate(zip(advantages, credit, strict=True)):
        if len(set(truth)) > 1:
            rhos[i] = 0.0 if len(set(given)) == 1 else spearmanr(truth, given).statistic
    assert 3 not in rhos and rhos[5] == 0.0 and len(rhos) >= 20
    found = alignment(advantages, credit, groups, correct, FEW)
    for name, part in (("correlation", [*rhos]), ("correlation_correct", [i for i in rhos if correct[i]])):
        assert found[name].value == pytest.approx(sum(rhos[i] for i in part) / len(part), abs=1e-12)
        assert found[name].rows == len(part)
    incorrect = [rhos[i] for i in rhos if not correct[i]]
    assert found.correlation_incorrect.value == pytest.approx(np.mean(incorrect))
    drawn = []  # problems with replacement, all rollouts of each
    for counts in FEW.draws(6):
        kept = [rho for i, rho in rhos.items() for _ in range(int(counts[int(groups[i])]))]
        drawn.append(sum(kept) / len(kept))
    assert (found.correlation.low, found.correlation.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]))


def test_the_truth_itself_has_one_and_uniform_credit_none():
    advantages, _, groups, correct = rollouts(1)
    assert alignment(advantages, advantages, groups, correct, FEW).correlation.value == pytest.approx(1.0)
    assert alignment(advantages, [-row for row in advantages], groups, correct, FEW).correlation.value == pytest.approx(
        -1
    )
    flat = [np.full(len(row), -1.0) for row in advantages]
    assert alignment(advantages, flat, groups, correct, FEW).correlation.value == 0.0


def test_nothing_to_rank_has_no_value_but_a_reason():
    found = alignment([np.zeros(4)] * 2, [np.arange(4.0)] * 2, ["0", "1"], [True, False], FEW).correlation
    assert found.value is None and "a rollout in which the true advantages of two tokens differ" in found.warning


GAINS = {
    "a": {0: 0.1, 1: 0.2, 2: 0.4},
    "b": {0: 0.0, 1: -0.1, 2: 0.1},
    "c": {0: 0.3, 1: 0.2, 2: 0.6},
    "d": {7: 0.15, 8: 0.05},
}
CORRELATIONS = {"a": 0.2, "b": -0.1, "c": 0.1, "d": 0.05, "untrained": 0.9}


def test_the_prediction_is_scipy_s_over_the_trained_rules():
    found = prediction(CORRELATIONS, GAINS, FEW)
    means = [np.mean([*GAINS[rule].values()]) for rule in "abcd"]
    assert found.value == pytest.approx(spearmanr([0.2, -0.1, 0.1, 0.05], means).statistic)
    assert (found.rows, found.problems) == (4, 5)


def test_its_interval_draws_rules_and_the_seeds_that_rules_share_together():
    drawn, chosen = [], np.random.default_rng(3).integers(4, size=(100, 4))
    for shared, other, rules in zip(Bootstrap(100, 3).draws(3), Bootstrap(100, 4).draws(2), chosen, strict=True):
        times = {0: shared[0], 1: shared[1], 2: shared[2], 7: other[0], 8: other[1]}
        means = []
        for rule in "abcd":
            values = [gain for seed, gain in GAINS[rule].items() for _ in range(int(times[seed]))]
            means.append(round(sum(values) / len(values), 12))
        x = np.array([0.2, -0.1, 0.1, 0.05])[rules]
        if np.ptp(x):  # a draw of one rule has no rank correlation
            drawn.append(spearmanr(x, np.array(means)[rules]).statistic)
    drawn = [each for each in drawn if np.isfinite(each)]
    found = prediction(CORRELATIONS, GAINS, FEW)
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975])) and found.low < found.high


def test_too_few_rules_or_equal_correlations_predict_nothing():
    for correlations in ({"a": 0.2, "b": 0.1}, {"a": 0.1, "b": 0.1, "c": 0.1}, {}):
        found = prediction(correlations, GAINS, FEW)
        assert found.value is None and "three rules" in found.warning


def test_the_scatter_has_a_point_for_each_trained_rule():
    advantages, credit, groups, correct = rollouts(2)
    measured = alignment(advantages, credit, groups, correct, FEW).correlation
    correlations = dict.fromkeys(CORRELATIONS, measured)
    gains = {rule: paired([*by_seed.values()]) for rule, by_seed in GAINS.items()}
    picture = prediction_picture(correlations, gains, prediction(CORRELATIONS, GAINS, FEW), "uniform", "task")
    assert [row[0] for row in picture.rows] == [*"abcd"] and "over 4 rules" in picture.caption
    assert picture.rows[0][1:4] == (measured.value, measured.low, measured.high)
    assert render(picture, "svg").count(b"<svg") == 1
    assert isinstance(prediction_picture(correlations, {}, measured, "uniform", "task"), Omission)
