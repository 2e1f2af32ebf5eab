"""`entropy_mask` against a count of higher entropies, token by token. Both compare numbers, so they agree exactly."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

from openrlhf_shear.config.rules import EntropyMaskConfig
from openrlhf_shear.credit import RolloutGroup
from openrlhf_shear.credit.apply import token_advantages, weighed
from openrlhf_shear.credit.baselines import group_advantages
from openrlhf_shear.credit.rules.entropy_mask import EntropyMaskRule, kept

NAN = float("nan")


def group(entropies, correct) -> RolloutGroup:
    rewards = tuple(NAN if outcome is None else float(outcome) for outcome in correct)
    tensors = tuple(torch.tensor(values, dtype=torch.float32) for values in entropies)
    return RolloutGroup(0, rewards, tuple(correct), tuple(map(len, entropies)), entropies=tensors)


def random_group(seed):
    """2 to 9 rollouts of 0 to 30 tokens; entropies in steps of 0.1, so that many are equal; some without a reward."""
    rng = np.random.default_rng(seed)
    lengths = [int(rng.choice([0, 1, rng.integers(2, 31)], p=[0.1, 0.1, 0.8])) for _ in range(rng.integers(2, 10))]
    entropies = [np.round(rng.exponential(size=n), 1).tolist() for n in lengths]
    return entropies, [[True, False, None][rng.choice(3, p=[0.4, 0.4, 0.2])] for _ in lengths]


def oracle(entropies, correct, fraction: str) -> list[list[float]]:
    """A token is kept if fewer than k of the rated tokens have a higher entropy."""
    rated = [h for values, outcome in zip(entropies, correct, strict=True) if outcome is not None for h in values]
    if not rated:
        return [[1.0] * len(values) for values in entropies]
    k = math.ceil(Fraction(fraction) * len(rated))
    return [[float(sum(other > h for other in rated) < k) for h in values] for values in entropies]


def weights_of(entropies, correct, fraction="0.2") -> list[list[float]]:
    credit = EntropyMaskRule(EntropyMaskConfig(float(fraction))).credit(group(entropies, correct))
    return [weights.tolist() for weights in credit.weights]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("fraction", ["0.2", "0.5", "0.01", "1"])
def test_weights_match_the_oracle(fraction, seed):
    entropies, correct = random_group(seed)
    assert weights_of(entropies, correct, fraction) == oracle(entropies, correct, fraction)


def test_a_worked_example():
    entropies = [[0.1, 0.9, 0.3, 0.2], [0.8, 0.0, 0.05, 0.7], [0.4, 0.6]]
    assert weights_of(entropies, [True, False, False]) == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0]]
    credit = EntropyMaskRule().credit(group(entropies, [True, False, False]))
    assert credit.metrics == {"threshold": pytest.approx(0.8)}


def test_equal_entropies_and_a_fraction_of_one_are_grpo():
    assert weights_of([[0.5] * 6, [0.5] * 2], [True, False]) == [[1] * 6, [1] * 2]
    assert weights_of([[0.5, 0.1, 0.2], [0.0, 0.5]], [True, False], "1") == [[1, 1, 1], [1, 1]]


def test_a_smaller_share_keeps_a_subset():
    entropies, correct = random_group(3)
    shares = [np.concatenate(weights_of(entropies, correct, fraction)) for fraction in ("0.1", "0.2", "0.4", "0.8")]
    for smaller, larger in pairwise(shares):
        assert np.all(smaller <= larger) and smaller.sum() < larger.sum()


def test_a_rollout_without_a_reward_does_not_count():
    entropies, correct = [[0.1, 0.9, 0.3], [0.8, 0.2], [5.0, 6.0, 7.0]], [True, False, None]
    assert weights_of(entropies, correct, "0.4")[:2] == weights_of(entropies[:2], correct[:2], "0.4")
    nothing = EntropyMaskRule().credit(group(entropies, [None] * 3))
    assert [weights.tolist() for weights in nothing.weights] == [[1] * 3, [1] * 2, [1] * 3] and nothing.metrics == {}
    assert weights_of([[], []], [True, False]) == [[], []]


@pytest.mark.parametrize("seed", range(4))
def test_no_advantage_changes_its_sign_and_unmixed_groups_learn_nothing(seed):
    entropies, correct = random_group(seed)
    for outcomes in (correct, [True] * len(correct), [False] * len(correct)):
        given = group(entropies, outcomes)
        failed = torch.tensor([outcome is None for outcome in outcomes])
        values = group_advantages(torch.tensor(given.rewards), len(outcomes), failed=failed)
        base = {i: values[i].expand(n) for i, n in enumerate(given.lengths)}
        made = token_advantages(
            EntropyMaskRule(), [weighed(EntropyMaskRule(), [given], [range(len(outcomes))])[0][0]], base
        )
        for i, credit in made.items():
            assert torch.equal(credit.advantages, credit.base * credit.weights)
            assert torch.all((credit.advantages == 0) | (credit.advantages == credit.base))
            assert len(set(outcomes) - {None}) > 1 or not credit.advantages.any(), i
    alone = EntropyMaskRule().credit(group([[0.1, 0.7, 0.2, 0.3, 0.4, 0.5]], [True]))
    assert alone.weights[0].tolist() == [0, 1, 0, 0, 0, 1]


def test_one_token_responses_compete_with_each_other():
    assert weights_of([[0.3], [0.1], [0.9], [0.2], [0.4]], [True, False] * 2 + [True]) == [[0], [0], [1], [0], [0]]


def test_the_number_of_tokens_is_that_of_the_decimal_fraction():
    for hundredths in range(1, 101):
        for tokens in (1, 2, 3, 7, 10, 99, 100, 101, 12345):
            assert kept(hundredths / 100, tokens) == math.ceil(Fraction(hundredths, 100) * tokens)
    assert kept(1e-12, 5) == 1
