"""Weighted statistics are those of repeated rows; intervals are over problems, cover, and say if they mean nothing."""

import numpy as np
import pytest
from scipy import stats

from openrlhf_shear.report.bootstrap import Bootstrap, Quantity, ends, parts
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.rows import Ordered, problem_codes, ratio, spearman, spearman_of, sums


def drawn(seed, n=60, strata=1):
    """Two columns with ties, weights with zeros, an outcome and a stratum."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 9, n).astype(float), rng.normal(size=n).round(1)
    return x, y, rng.integers(0, 4, n), rng.random(n) < 0.4, rng.integers(0, strata, n)


def mean_of(values, codes, problems, **more):
    """The mean of rows."""
    rows, total = (sums(codes, np.zeros(len(codes), dtype=int), v, (problems, 1))[:, 0] for v in (None, values))
    return Quantity("mean", lambda weights: ratio(weights @ total, weights @ rows), rows, **more)


def estimate(quantity, resamples=1000, seed=0):
    return Bootstrap(resamples, seed).estimates([quantity])[quantity.name]


@pytest.mark.parametrize("strata", [1, 4])
def test_weighted_ranks_rho_and_auc_are_those_of_repeated_rows(strata):
    x, y, weights, positive, stratum = drawn(strata, strata=strata)
    repeated, (won, pairs) = np.repeat(np.arange(len(x)), weights), Ordered(x, stratum).wins(positive, weights)
    ranks = np.zeros((2, len(repeated)))
    for s in range(strata):
        own = stratum[repeated] == s
        for column, values in zip(ranks, (x, y), strict=True):
            column[own] = (stats.rankdata(values[repeated][own]) - 0.5) / own.sum()
        a, b = (x[repeated[own & (positive[repeated] == outcome)]] for outcome in (True, False))
        assert pairs[s] == len(a) * len(b)
        assert won[s] == pytest.approx(stats.mannwhitneyu(a, b).statistic, abs=1e-9)
    both = Ordered(x, stratum), Ordered(y, stratum)
    assert both[0].ranks(weights)[repeated] == pytest.approx(ranks[0], abs=1e-12)
    assert spearman(*both, weights.astype(float)) == pytest.approx(np.corrcoef(ranks)[0, 1], abs=1e-12)
    if strata == 1:
        assert np.corrcoef(ranks)[0, 1] == pytest.approx(stats.spearmanr(x[repeated], y[repeated]).statistic)
        assert spearman(Ordered(x), Ordered(y), weights.astype(float)) == spearman(*both, weights.astype(float))


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
    ours = estimate(mean_of(values, np.arange(40), 40), 4000, 3)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=4000, method="percentile", rng=4).confidence_interval
    # both are quantiles of 4000 draws: the standard error of the 2.5% one of a normal is 0.042 of its deviation
    tolerance = 4 * np.sqrt(2) * 0.042 * values.std() / np.sqrt(40)
    assert ours.low == pytest.approx(theirs.low, abs=tolerance)
    assert ours.high == pytest.approx(theirs.high, abs=tolerance)
    assert (ours.value, ours.problems, ours.rows) == (pytest.approx(values.mean()), 40, 40)


def test_copies_of_a_problem_s_rows_make_no_interval_narrower():
    values, codes = np.random.default_rng(2).normal(size=30), np.repeat(np.arange(30), 10)
    once, often = estimate(mean_of(values, np.arange(30), 30), 200), estimate(mean_of(values[codes], codes, 30), 200)
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert (often.problems, often.rows) == (30, 300)
    as_rows = estimate(mean_of(values[codes], np.arange(300), 300), 200)
    assert as_rows.high - as_rows.low < 0.5 * (once.high - once.low)  # what resampling rows would claim


@pytest.mark.parametrize(("problems", "warning"), [(1, "one problem"), (9, "9 problems"), (10, None)])
def test_few_problems_are_said(problems, warning):
    values = np.linspace(0.4, 0.6, problems)
    estimated = estimate(mean_of(values, np.arange(problems), problems, span=1.0), 100)
    assert estimated.value == pytest.approx(values.mean())
    assert (estimated.warning is None) if warning is None else f"rests on {warning}, too few" in estimated.warning
    assert (estimated.low is None) == (problems == 1)


def test_an_undefined_number_says_what_it_needs():
    both = Quantity("both", lambda weights: np.array([np.nan, 1.0]), np.ones((20, 2)), "two of them")
    undefined, other = estimate(both, 9)
    assert undefined == Estimate(None, None, None, 20, 20, None, "not defined: it needs two of them")
    assert other.value == 1
    assert estimate(Quantity("none", lambda weights: weights[0], np.zeros(0))).value is None


def test_resamples_without_a_value_are_said_unless_few_and_left_out():
    def statistic(weights):  # problems 0 and 1 must both be drawn: with chance 1 - 2/e + 1/e^2, 0.40
        return 1.0 if weights[0] * weights[1] > 0 else np.nan

    def rarely(weights):  # none of 4 problems is drawn: with chance (46 / 50)^50, 0.015
        return 1.0 if weights[:4].sum() > 0 else np.nan

    estimated = estimate(Quantity("both", statistic, np.ones(50)), 2000)
    assert (estimated.value, estimated.low, estimated.high) == (1, 1, 1)
    share = int(estimated.warning.removeprefix("not defined in ").split("%")[0]) / 100
    assert share == pytest.approx(2 * (49 / 50) ** 50 - (48 / 50) ** 50, abs=4 * np.sqrt(0.24 / 2000) + 0.005)
    assert any(np.isnan(rarely(weights)) for weights in Bootstrap(500).draws(50))
    assert estimate(Quantity("one", rarely, np.ones(50)), 500).warning is None


@pytest.mark.parametrize(("span", "said"), [(1.0, True), (2.0, False), (None, False)])
def test_a_wide_interval_is_warned_of(span, said):
    estimated = estimate(mean_of(np.tile([0.0, 1.0], 5), np.arange(10), 10, span=span), 400)
    assert ("more than half of what is possible" in (estimated.warning or "")) == said


def test_the_seed_decides():
    quantity = mean_of(np.random.default_rng(0).normal(size=20), np.arange(20), 20)
    first, same, other = (estimate(quantity, 50, seed) for seed in (0, 0, 1))
    assert first == same and first.low != other.low
    with pytest.raises(ValueError, match="resamples must be at least 1: got 0"):
        Bootstrap(0)


def test_quantities_share_one_pass_over_the_weights():
    made = []

    def shared(weights):
        made.append(weights)
        return weights * np.arange(12)

    rows = np.ones((12, 2))
    analysis = Bootstrap(30).estimates(
        [
            Quantity("rows", None, 2 * np.ones(12), what="Rows"),
            Quantity("ends", lambda of: of[[0, -1]], rows, paper=ends(0.5, 0.7, 2), what=ends("First", "Last", 2)),
            Quantity("sum", lambda of: of.sum(), rows[:, 0], paper=3, what="Sum"),
            Quantity("untitled", lambda of: of[1], rows[:, 0], caution="with care"),
        ],
        shared,
    )
    assert len(made) == 31
    assert analysis.rows == Estimate(24, None, None, 12, 24)
    assert [(estimated.value, estimated.paper) for estimated in analysis.ends] == [(0, 0.5), (11, 0.7)]
    assert (analysis.sum.value, analysis.sum.paper, analysis.untitled.warning) == (66, 3, "with care")
    assert list(analysis.numbers) == ["Rows", "First", "Last", "Sum"] and analysis.numbers["Last"] is analysis.ends[1]
    assert ends("First", "Last", 1) == [None] and ends("First", "Last", 3) == ["First", None, "Last"]
    with pytest.raises(AttributeError, match="rows, ends, sum, untitled; not median"):
        analysis.median  # noqa: B018
    assert parts(a=[1, 2], b=[3, 4])[1].b == 4


def test_a_number_is_written_with_its_interval():
    estimated = Estimate(0.5, 0.25, 0.75, 20, 20)
    assert estimated.text(".2f") == "0.50 (0.25 to 0.75)"
    assert estimated.interval(lambda value: f"{100 * value:.0f}") == "25 to 75"
    assert (Estimate(0.5, None, None, 1, 1).text(".1%"), Estimate(None, None, None, 0, 0).text()) == ("50.0%", "-")


def test_problems_are_counted_once():
    codes, problems = problem_codes(["b", "a", "b"])
    assert (codes.tolist(), problems) == ([0, 1, 0], 2)
    assert sums(codes, np.array([0, 1, -1]), np.array([2.0, 3.0, 9.0]), (2, 2)).tolist() == [[2, 0], [0, 3]]
