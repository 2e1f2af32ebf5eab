"""Weighted statistics are those of repeated rows; intervals are over problems, cover, and say if they mean nothing."""

import numpy as np
import pytest
from scipy import stats

from openrlhf_shear.report.estimates import Bootstrap, Estimate
from openrlhf_shear.report.weighted import Ordered, problem_codes, ratio, spearman, spearman_of, sums


def drawn(seed, n=60, strata=1):
    """Two columns with ties, weights with zeros, an outcome and a stratum."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 9, n).astype(float), rng.normal(size=n).round(1)
    return x, y, rng.integers(0, 4, n), rng.random(n) < 0.4, rng.integers(0, strata, n)


def mean_of(values, codes, problems):
    """The mean of rows as a statistic of problem weights, and the counts it rests on."""
    rows, total = (sums(codes, np.zeros(len(codes), dtype=int), v, (problems, 1)) for v in (None, values))
    return (lambda weights: ratio(weights @ total, weights @ rows)), rows


@pytest.mark.parametrize("seed", range(5))
def test_weighted_rho_and_ranks_are_those_of_repeated_rows(seed):
    x, y, weights, _, _ = drawn(seed)
    repeated = np.repeat(np.arange(len(x)), weights)
    found = spearman(Ordered(x), Ordered(y), weights.astype(float))
    assert found == pytest.approx(stats.spearmanr(x[repeated], y[repeated]).statistic, abs=1e-12)
    ranks = Ordered(x).ranks(weights)[repeated]
    assert ranks == pytest.approx((stats.rankdata(x[repeated]) - 0.5) / len(repeated), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_rho_within_strata_ranks_each_alone(seed):
    x, y, weights, _, strata = drawn(seed, strata=4)
    repeated = np.repeat(np.arange(len(x)), weights)
    x_ranks, y_ranks = np.zeros(len(repeated)), np.zeros(len(repeated))
    for stratum in range(4):
        own = strata[repeated] == stratum
        for ranks, values in ((x_ranks, x), (y_ranks, y)):
            ranks[own] = (stats.rankdata(values[repeated][own]) - 0.5) / own.sum()
    found = spearman(Ordered(x, strata), Ordered(y, strata), weights.astype(float))
    assert found == pytest.approx(np.corrcoef(x_ranks, y_ranks)[0, 1], abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_weighted_auc_is_that_of_repeated_rows(seed):
    x, _, weights, positive, strata = drawn(seed, strata=3)
    repeated = np.repeat(np.arange(len(x)), weights)
    won, pairs = Ordered(x, strata).wins(positive, weights)
    for stratum in range(3):
        own = repeated[strata[repeated] == stratum]
        a, b = x[own][positive[own]], x[own][~positive[own]]
        assert pairs[stratum] == len(a) * len(b)
        assert won[stratum] == pytest.approx(stats.mannwhitneyu(a, b).statistic, abs=1e-9)


def test_nothing_to_rank_is_no_number():
    ones = np.ones(4)
    assert np.isnan(spearman(Ordered([1, 1, 1, 1]), Ordered([1, 2, 3, 4]), ones))
    assert np.isnan(spearman(Ordered([]), Ordered([]), np.zeros(0)))
    strata = np.arange(4)  # nothing differs within a stratum
    assert np.isnan(spearman(Ordered([1, 2, 3, 4], strata), Ordered([1, 2, 3, 4], strata), ones))
    assert np.isnan(ratio(*Ordered([1, 2]).wins(np.array([True, True]), np.ones(2)))[0])
    assert np.isnan(spearman_of(np.array([1.0, 2, np.nan]), np.array([1.0, 2, 3])))
    assert spearman_of(np.array([1.0, 2, 3, np.nan]), np.array([5.0, 4, 1, 9])) == -1


def test_the_interval_is_that_of_scipy():
    values = np.random.default_rng(1).gamma(1.0, size=40)
    statistic, rows = mean_of(values, np.arange(40), 40)
    ours = Bootstrap(4000, 3).estimates(statistic, rows, "")[0]
    theirs = stats.bootstrap((values,), np.mean, n_resamples=4000, method="percentile", rng=4).confidence_interval
    # both are quantiles of 4000 draws: the standard error of the 2.5% one of a normal is 0.042 of its deviation
    tolerance = 4 * np.sqrt(2) * 0.042 * values.std() / np.sqrt(40)
    assert ours.low == pytest.approx(theirs.low, abs=tolerance)
    assert ours.high == pytest.approx(theirs.high, abs=tolerance)
    assert (ours.value, ours.problems, ours.rows) == (pytest.approx(values.mean()), 40, 40)


def test_copies_of_a_problem_s_rows_make_no_interval_narrower():
    values = np.random.default_rng(2).normal(size=30)
    once = Bootstrap(200).estimates(*mean_of(values, np.arange(30), 30), "")[0]
    codes = np.repeat(np.arange(30), 10)
    often = Bootstrap(200).estimates(*mean_of(values[codes], codes, 30), "")[0]
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert (often.problems, often.rows) == (30, 300)
    as_rows = Bootstrap(200).estimates(*mean_of(values[codes], np.arange(300), 300), "")[0]
    assert as_rows.high - as_rows.low < 0.5 * (once.high - once.low)  # what resampling rows would claim


def test_intervals_cover_the_truth():
    """40 problems of 8 rows with a common part: 95% intervals over problems cover about 95%, over rows far fewer."""
    rng, codes, covered, as_rows = np.random.default_rng(5), np.repeat(np.arange(40), 8), 0, 0
    for seed in range(200):
        values = rng.normal(size=40)[codes] + 0.3 * rng.normal(size=320)
        found = Bootstrap(200, seed).estimates(*mean_of(values, codes, 40), "")[0]
        covered += found.low <= 0 <= found.high
        found = Bootstrap(200, seed).estimates(*mean_of(values, np.arange(320), 320), "")[0]
        as_rows += found.low <= 0 <= found.high
    # a percentile interval of 40 means covers about 93%; binomial: 4 standard errors of 0.93 in 200 are 0.072
    assert 0.86 <= covered / 200 <= 0.995
    assert as_rows / 200 < 0.75


@pytest.mark.parametrize(("problems", "warning"), [(1, "one problem"), (9, "9 problems"), (10, None)])
def test_few_problems_are_said(problems, warning):
    values = np.linspace(0.4, 0.6, problems)
    found = Bootstrap(100).estimates(*mean_of(values, np.arange(problems), problems), "", span=1.0)[0]
    assert found.value == pytest.approx(values.mean())
    assert (found.warning is None) if warning is None else f"rests on {warning}, too few" in found.warning
    assert (found.low is None) == (problems == 1)


def test_a_number_that_is_not_defined_says_what_it_needs():
    found = Bootstrap(10).estimates(lambda weights: np.array([np.nan, 1.0]), np.ones((20, 2)), "two of them")
    assert found[0] == Estimate(None, None, None, 20, 20, None, "not defined: it needs two of them")
    assert found[1].value == 1
    assert Bootstrap(10).estimates(lambda weights: weights[:1], np.zeros((0, 1)), "a row")[0].value is None


def test_resamples_without_a_value_are_said_and_left_out():
    def statistic(weights):  # problems 0 and 1 must both be drawn: with chance 1 - 2/e + 1/e^2, 0.40
        return np.where(weights[:1] * weights[1:2] > 0, 1.0, np.nan)

    found = Bootstrap(2000).estimates(statistic, np.ones((50, 1)), "both")[0]
    assert (found.value, found.low, found.high) == (1, 1, 1)
    share = int(found.warning.removeprefix("not defined in ").split("%")[0]) / 100
    assert share == pytest.approx(2 * (49 / 50) ** 50 - (48 / 50) ** 50, abs=4 * np.sqrt(0.24 / 2000) + 0.005)


def test_few_resamples_without_a_value_are_not_worth_a_warning():
    def statistic(weights):  # none of 4 problems is drawn: with chance (46 / 50)^50, 0.015
        return np.where(weights[:4].sum(keepdims=True) > 0, 1.0, np.nan)

    assert any(np.isnan(statistic(weights)) for weights in Bootstrap(500).draws(50))
    assert Bootstrap(500).estimates(statistic, np.ones((50, 1)), "one")[0].warning is None


def test_a_wide_interval_is_said():
    values = np.tile([0.0, 1.0], 5)
    statistic, rows = mean_of(values, np.arange(10), 10)
    assert "more than half of what is possible" in Bootstrap(400).estimates(statistic, rows, "", span=1.0)[0].warning
    assert Bootstrap(400).estimates(statistic, rows, "", span=2.0)[0].warning is None
    assert Bootstrap(400).estimates(statistic, rows, "")[0].warning is None


def test_the_seed_decides():
    statistic, rows = mean_of(np.random.default_rng(0).normal(size=20), np.arange(20), 20)
    one, same, other = (Bootstrap(50, seed).estimates(statistic, rows, "")[0] for seed in (0, 0, 1))
    assert one == same
    assert one.low != other.low
    with pytest.raises(ValueError, match="resamples must be at least 1: got 0"):
        Bootstrap(0)


def test_problems_are_counted_once():
    codes, problems = problem_codes(["b", "a", "b"])
    assert (codes.tolist(), problems) == ([0, 1, 0], 2)
    assert sums(codes, np.array([0, 1, -1]), np.array([2.0, 3.0, 9.0]), (2, 2)).tolist() == [[2, 0], [0, 3]]
