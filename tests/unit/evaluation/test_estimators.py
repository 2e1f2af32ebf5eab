"""avg@k, pass@k, maj@k and their errors against enumeration and exact arithmetic."""

import random
from fractions import Fraction
from itertools import combinations, product

import pytest

from openrlhf_shear.evaluation.estimators import avg_at_k, maj_at_k, pass_at_k


@pytest.mark.parametrize("seed", range(6))
def test_avg_and_its_error_against_fractions(seed):
    rng = random.Random(seed)
    some = [[rng.choice((True, False, None)) for _ in range(rng.randint(0, 5))] for _ in range(rng.randint(0, 7))]
    outcomes = [[True], [False, True], *some]
    graded = [[correct for correct in samples if correct is not None] for samples in outcomes]
    means = [Fraction(sum(kept), len(kept)) for kept in graded if kept]
    score = avg_at_k(outcomes)
    assert (score.problems, score.left_out) == (len(means), len(outcomes) - len(means))
    assert score.value == pytest.approx(float(sum(means) / len(means)), abs=1e-15)
    pairs = list(combinations(means, 2))  # the variance as the mean squared difference of all pairs, over 2
    variance = sum((a - b) ** 2 for a, b in pairs) / len(pairs) / 2
    assert score.stderr**2 == pytest.approx(float(variance / len(means)), abs=1e-15)
    assert avg_at_k([[True, False]]).stderr is None


def test_what_has_no_grade_is_no_zero():
    assert avg_at_k([[True, None, None]]).value == 1.0
    assert pass_at_k([[True, None, True]], 2).value == 1.0
    assert maj_at_k([[("1", None), ("1", None), ("2", True)]]).value == 1.0
    for nothing in (avg_at_k([[None], []]), pass_at_k([[None], []], 1), maj_at_k([[("1", None)], []])):
        assert (nothing.value, nothing.stderr, nothing.problems, nothing.left_out) == (None, None, 0, 2)


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_against_every_subset(n):
    for correct, k in product(range(n + 1), range(1, n + 1)):
        samples = [True] * correct + [False] * (n - correct)
        subsets = list(combinations(samples, k))
        expected = sum(any(subset) for subset in subsets) / len(subsets)
        assert pass_at_k([samples], k).value == pytest.approx(expected, abs=1e-15), (n, correct, k)


def test_pass_at_k_over_problems():
    outcomes = [[True, False, False], [False] * 3, [True, None, None]]
    found = pass_at_k(outcomes, 2)
    assert found.value == pytest.approx((2 / 3 + 0) / 2) and found.left_out == 1  # one has one sample only
    assert found.stderr == pytest.approx(1 / 3)
    assert pass_at_k(outcomes, 1).value == pytest.approx(avg_at_k(outcomes).value)


def test_pass_at_k_of_many_samples_keeps_small_and_large_chances():
    value = pass_at_k([[True] + [False] * 9999], 1000).value
    assert value == 0.1
    assert pass_at_k([[True] * 5000 + [False] * 5000], 64).value == pytest.approx(1.0, abs=1e-15)
    assert pass_at_k([[False] * 10_000], 64).value == 0.0


ALIKE = {
    **{"1": 0, "$1$": 0, "1.": 0, r"\frac12": 1, r"\dfrac{1}{2}": 1},
    **{r"\text{Evelyn}": 2, "evelyn": 2, "": None, "$": None},
}


@pytest.mark.parametrize("seed", range(16))
def test_majority_against_drawing_a_winner(seed):
    """Each most frequent class may win, and then each of its members may stand for it, all with equal chances."""
    rng = random.Random(seed)
    samples = [
        (rng.choice([*ALIKE, None]), rng.choice((True, False, None) if seed % 2 else (True, False)))
        for _ in range(rng.randint(1, 7))
    ]
    graded = [(ALIKE.get(answer), correct) for answer, correct in samples if correct is not None]
    names = [name for name, _ in graded if name is not None]
    winners = [name for name in set(names) if names.count(name) == max(map(names.count, names))]
    chance = Fraction(0)
    for winner in winners:
        members = [correct for name, correct in graded if name == winner]
        chance += Fraction(sum(members), len(members)) / len(winners)
    found = maj_at_k([samples])
    if graded:
        assert found.value == pytest.approx(float(chance), abs=1e-15)
    else:
        assert found.value is None and found.left_out == 1
