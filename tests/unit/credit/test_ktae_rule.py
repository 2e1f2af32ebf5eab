"""`ktae` against loops over ids and rollouts, in float64 from the paper's formulas and SciPy's Fisher test.

GRPO's advantages are float32: the tolerance of their test (`test_credit_formulas.py`), plus two roundings of the sum.
"""

import math

import numpy as np
import pytest
import torch
from scipy.stats import fisher_exact

from openrlhf_shear.config.rules import KtaeConfig
from openrlhf_shear.credit import RolloutGroup
from openrlhf_shear.credit.rules.ktae import KtaeRule, associations

U = 2**-24
NAN = float("nan")
SEEDS = range(8)


def group(texts, correct, rewards=None) -> RolloutGroup:
    rewards = rewards or [NAN if outcome is None else float(outcome) for outcome in correct]
    ids = tuple(torch.tensor(text, dtype=torch.int64) for text in texts)
    return RolloutGroup(0, tuple(rewards), tuple(correct), tuple(map(len, texts)), token_ids=ids)


def random_group(seed, graded=False):
    """4 to 9 rollouts of 0 to 30 of 12 ids, of both outcomes; some have no reward."""
    rng = np.random.default_rng(seed)
    lengths = [3, 5, *(int(rng.choice([0, 1, rng.integers(2, 31)])) for _ in range(rng.integers(2, 8)))]
    texts = [rng.choice([7, 1000, *range(20, 30)], n).tolist() for n in lengths]
    correct = [True, False, *([True, False, None][rng.choice(3, p=[0.4, 0.4, 0.2])] for _ in lengths[2:])]
    rewards = [NAN if c is None else float(c) + graded * rng.random() / 2 for c in correct]
    return texts, correct, rewards


def oracle_value(token, texts, correct, fisher=1.0, gain=1.0, frequency=1.0, scale=1.0) -> float:
    right = [text for text, outcome in zip(texts, correct, strict=True) if outcome is True]
    wrong = [text for text, outcome in zip(texts, correct, strict=True) if outcome is False]
    length_right, length_wrong = sum(map(len, right)), sum(map(len, wrong))
    if not length_right or not length_wrong:
        return 0.0
    a, b = sum(token in text for text in right), sum(token in text for text in wrong)
    table = [[a, b], [len(right) - a, len(wrong) - b]]
    p = fisher_exact(table, alternative="two-sided").pvalue
    association = 0.0 if p > 1 - 1e-9 else math.exp(-2 * p)
    information, total = 0.0, len(right) + len(wrong)  # mutual, from the joint distribution
    for row in table:
        for outcome in (0, 1):
            if row[outcome]:
                joint, apart = row[outcome] / total, sum(row) / total * (table[0][outcome] + table[1][outcome]) / total
                information += joint * math.log2(joint / apart)
    frequencies = []
    for side, length in ((right, length_right), (wrong, length_wrong)):
        tf = sum(text.count(token) for text in side) / length
        k = 2.0 * (1 - 0.5 + 0.5 * length / ((length_right + length_wrong) / 2))
        frequencies.append(tf * (2.0 + 1) / (tf + k))
    of_right, of_wrong = frequencies
    direction = math.asin(math.sqrt(a / len(right))) - math.asin(math.sqrt(b / len(wrong)))
    direction += frequency * (of_right / (of_wrong + 1e-5) - of_wrong / (of_right + 1e-5))
    strength = (fisher * association + gain * information) / (fisher + gain)
    return scale * 2 * (1 / (1 + math.exp(-max(min(strength * direction, 500), -500))) - 0.5)


def grpo(rewards, correct):
    """The advantages in float64, and how far float32 may be off."""
    rated = np.array([r for r, outcome in zip(rewards, correct, strict=True) if outcome is not None])
    if len(rated) < 2 or np.all(rated == rated[0]):
        return np.zeros(len(rewards)), 0.0
    deviation, count = rated.std(ddof=1), len(rated)
    spread = np.abs(rated).max() / deviation
    values = [
        0.0 if c is None else (r - rated.mean()) / (deviation + 1e-9) for r, c in zip(rewards, correct, strict=True)
    ]
    return np.array(values), (count + 3) * (1 + np.sqrt(count)) * (1 + spread) * U


def made(texts, correct, rewards=None, **knobs) -> list[np.ndarray]:
    credit = KtaeRule(KtaeConfig(**knobs)).credit(group(texts, correct, rewards))
    assert all(values.dtype == torch.float32 for values in credit.advantages)
    return [values.double().numpy() for values in credit.advantages]


def added(texts, correct, **knobs) -> list[list[float]]:
    rule = KtaeRule(KtaeConfig(**knobs))
    return [row.tolist() for row in rule.values([torch.tensor(text) for text in texts], correct)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("knobs", [{}, {"fisher": 0.5, "gain": 2.0, "frequency": 0.0, "scale": 0.5}, {"fisher": 0.0}])
def test_advantages_match_the_oracle(knobs, graded, seed):
    texts, correct, rewards = random_group(seed, graded)
    base, off = grpo(rewards, correct)
    for i, found in enumerate(made(texts, correct, rewards, **knobs)):
        wanted = np.array([base[i] + oracle_value(token, texts, correct, **knobs) for token in texts[i]])
        wanted = wanted if correct[i] is not None else np.zeros(len(texts[i]))
        assert len(found) == len(wanted) and np.all(np.abs(found - wanted) <= off + 2 * U * (1 + np.abs(wanted)))


def test_associations_of_all_tables_are_scipy_s():
    for right, wrong in ((1, 1), (1, 7), (4, 4), (8, 8), (5, 11)):
        fisher, gain = associations(right, wrong)
        for a in range(right + 1):
            for b in range(wrong + 1):
                p = fisher_exact([[a, b], [right - a, wrong - b]]).pvalue
                assert fisher[a, b].item() == pytest.approx(0.0 if p > 1 - 1e-9 else math.exp(-2 * p), abs=1e-12)
        assert gain[0, 0] == gain[right, wrong] == 0.0, "an id in all rollouts, or in none, tells nothing"
        whole = -sum(n / (right + wrong) * math.log2(n / (right + wrong)) for n in (right, wrong))
        assert gain[right, 0].item() == gain[0, wrong].item() == pytest.approx(whole, abs=1e-12), "all of H(Y)"


def test_a_worked_example():
    """Id 1 is in both correct rollouts, 2 in both incorrect ones, 3 everywhere equally often."""
    texts, correct = [[1, 3], [1, 3], [2, 3], [2, 3]], [True, True, False, False]
    strength = (math.exp(-2 / 3) + 1) / 2
    f = 3 * 0.5 / (0.5 + 2)
    value = math.tanh(strength * (math.pi / 2 + f / 1e-5) / 2)
    assert added(texts, correct) == [[pytest.approx(value), 0.0]] * 2 + [[pytest.approx(-value), 0.0]] * 2
    gentle = math.tanh(strength * math.pi / 4)
    assert added(texts, correct, frequency=0.0)[0] == [pytest.approx(gentle), 0.0]
    credit = KtaeRule(KtaeConfig(frequency=0.0)).credit(group(texts, correct))
    assert credit.metrics == {"added": pytest.approx(gentle / 2)}


@pytest.mark.parametrize("seed", SEEDS)
def test_laws_of_the_values(seed):
    texts, correct, _ = random_group(seed)
    rated = [(text, outcome) for text, outcome in zip(texts, correct, strict=True) if outcome is not None]
    texts, correct = map(list, zip(*rated, strict=True))
    values = added(texts, correct)
    of_id = {}
    for text, row in zip(texts, values, strict=True):
        for token, value in zip(text, row, strict=True):
            assert of_id.setdefault(token, value) == value, "an id has one value in a group"
            assert -1 <= value <= 1
    swapped = added(texts, [not outcome for outcome in correct])
    renamed = added([[10**6 - token for token in text] for text in texts], correct)
    halved = added(texts, correct, scale=0.5)
    for row, other, same, half in zip(values, swapped, renamed, halved, strict=True):
        # sums in another order: float64's noise, 2e-16 of directions up to 1e5, where the sigmoid is flat
        assert other == pytest.approx([-value for value in row], abs=1e-9)
        assert same == row and half == [value / 2 for value in row]


@pytest.mark.parametrize("correct", [[True] * 3, [False] * 3, [True, None, True], [None] * 3])
def test_groups_of_one_outcome_are_grpo(correct):
    texts = [[1, 2, 3], [4], [1, 1]]
    assert not any(values.any() for values in made(texts, correct))
    rewards = [NAN if outcome is None else 0.25 * i for i, outcome in enumerate(correct)]
    base, off = grpo(rewards, correct)
    for i, values in enumerate(made(texts, correct, rewards)):
        assert np.all(np.abs(values - base[i]) <= off)
    assert KtaeRule().credit(group(texts, correct)).metrics == {"added": 0.0}
    assert made([[1, 2]], [True])[0].tolist() == [0.0, 0.0], "a group of one"


def test_an_outcome_without_tokens_is_no_comparison():
    base, off = grpo([1.0, 0.0, 0.0], [True, False, False])
    (first, *others) = made([[1, 2], [], []], [True, False, False])
    assert np.all(np.abs(first - base[0]) <= off) and [len(row) for row in others] == [0, 0]


def test_rollouts_without_a_reward_count_nowhere():
    texts, correct = [[1, 3], [2, 3], [1, 2, 5]], [True, False, None]
    with_it, without = made(texts, correct), made(texts[:2], correct[:2])
    assert all(np.array_equal(a, b) for a, b in zip(with_it, without, strict=False)) and not with_it[2].any()


def test_one_token_responses():
    """2 of 3 correct rollouts say 1, 1 of 3 incorrect: p = 1, so that only the information gain counts."""
    texts, correct = [[1], [1], [2], [1], [2], [2]], [True, True, True, False, False, False]
    base, _ = grpo([1.0, 1, 1, 0, 0, 0], correct)
    found = np.concatenate(made(texts, correct))
    value = oracle_value(1, texts, correct)
    assert value == pytest.approx(oracle_value(1, texts, correct, fisher=0.0, gain=2.0) / 2, rel=0.1)
    assert found == pytest.approx(base + value * np.array([1, 1, -1, 1, -1, -1]), abs=64 * U) and value > 0


def test_signs_may_change():
    """The correct rollouts have an advantage of 0.72; id 2 is in one of the five, and in all three incorrect ones."""
    texts, correct = [[1, 2], *[[1, 3]] * 4, *[[4, 2]] * 3], [True] * 5 + [False] * 3
    advantages = made(texts, correct)
    assert advantages[0][0] > 1 > 0 > advantages[0][1] and advantages[5][0] < -2
    small = made(texts, correct, scale=0.7)
    assert all(np.all(values > 0) for values in small[:5]) and all(np.all(values < 0) for values in small[5:])
