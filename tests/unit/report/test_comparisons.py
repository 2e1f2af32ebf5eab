"""Comparisons over seeds: the definitions of rliable and of Holm, in loops; intervals from the same resamples."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from openrlhf_shear.report.bootstrap import Bootstrap, holm, iqm, probability_of_improvement

FEW = Bootstrap(200, 7)


def interval(of, seeds, bootstrap=FEW):
    """Percentiles of a statistic of lists of seeds, over the bootstrap's resamples."""
    drawn = []
    for counts in bootstrap.draws(seeds):
        drawn.append(of([seed for seed, times in enumerate(counts) for _ in range(int(times))]))
    return np.quantile(drawn, [0.025, 0.975])


def middle(values):
    """The mean of the values without a quarter at each end, rounded down."""
    values = sorted(values)
    cut = len(values) // 4
    kept = values[cut : len(values) - cut]
    return sum(kept) / len(kept)


@pytest.mark.parametrize("seeds", [2, 3, 4, 7, 14])
def test_the_interquartile_mean_drops_a_quarter_at_each_end(seeds):
    scores = np.random.default_rng(seeds).normal(size=seeds).round(1).tolist()
    found = iqm(scores, FEW)
    assert found.value == pytest.approx(middle(scores), abs=1e-12) and found.rows == found.problems == seeds
    assert (found.low, found.high) == pytest.approx(interval(lambda at: middle([scores[i] for i in at]), seeds))
    assert (found.warning is None) == (seeds >= 5)


def test_outliers_do_not_move_it():
    for scores in ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 1000], [-900, 1, 2, 3, 4, 5, 6, 7]):
        assert iqm(scores, FEW).value == 3.5


@pytest.mark.parametrize("seeds", [2, 5, 11])
def test_the_probability_of_improvement_counts_all_pairs(seeds):
    rng = np.random.default_rng(seeds)
    mine, its = rng.integers(0, 6, seeds).astype(float), rng.integers(0, 6, seeds).astype(float)

    def won(at):
        pairs = [(mine[i], its[j]) for i in at for j in at]
        return sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)

    found = probability_of_improvement(mine, its, FEW)
    assert found.value == pytest.approx(won(range(seeds)), abs=1e-12)
    assert found.value == pytest.approx(mannwhitneyu(mine, its).statistic / seeds**2)
    assert (found.low, found.high) == pytest.approx(interval(won, seeds))


def test_no_seed_has_no_value_and_a_single_seed_no_interval():
    none, single = iqm([], FEW), probability_of_improvement([2.0], [1.0], FEW)
    assert (none.value, none.low, none.warning) == (None, None, "not defined: it needs a seed")
    assert (single.value, single.low, single.high) == (1.0, None, None) and "rests on 1 seeds" in single.warning
    with pytest.raises(ValueError, match="scores must be pairs: got 2 and 1"):
        probability_of_improvement([1.0, 2.0], [1.0], FEW)


@pytest.mark.parametrize("ps", permutations((0.001, 0.02, 0.021, 0.4)))
def test_holm_s_p_values_are_the_smallest_levels_that_reject(ps):
    def rejected(level):
        """Step down: the smallest p against level / 4, the next against level / 3, until one is larger."""
        for rank, i in enumerate(sorted(range(4), key=lambda i: ps[i])):
            if ps[i] > level / (4 - rank):
                return
            yield i

    for i, p in enumerate(holm(ps, 4)):
        assert i in rejected(p + 1e-12) and i not in rejected(p - 1e-9)
