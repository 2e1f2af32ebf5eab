"""`vine` against loops over steps in float64, on values that are a function of the prefix; U is float32's roundoff.

Values and rewards are in [0, 1], float32 and rounded once, and so is their difference: 2 U.
"""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from lab_cases import PROMPT

from openrlhf_shear.config.rules import VineConfig
from openrlhf_shear.credit import RolloutGroup
from openrlhf_shear.credit.checks import checked_credits, checked_over_batch
from openrlhf_shear.credit.rules.vine import VineRule
from openrlhf_shear.lab import inputs
from openrlhf_shear.tasks.arithmetic.problems import parse_problem
from openrlhf_shear.tasks.arithmetic.task import ArithmeticTask

U = 2**-24
NAN = float("nan")
TEXTS = ([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 9, 5], [], [8], [1, 2, 3, 4, 5, 6])
REWARDS = [1.0, 0.0, 0.0, 1.0, NAN]


def value_of(prefix, samples) -> float:
    """A value that depends on nothing but the tokens."""
    return random.Random(repr((tuple(prefix), samples))).randrange(samples + 1) / samples


class Continued:
    """Stands in for the policy: continues prefixes, and keeps what it was asked."""

    def __init__(self, texts):
        self.texts, self.asked = texts, []

    def __call__(self, places, n):
        self.asked += [(i, t, n) for i, t in places]
        return [value_of(self.texts[i][:t], n) for i, t in places]


def group(texts, rewards) -> RolloutGroup:
    correct = tuple(None if math.isnan(reward) else reward > 0.5 for reward in rewards)
    ids = tuple(torch.tensor(text, dtype=torch.int64) for text in texts)
    return RolloutGroup(
        0, tuple(rewards), correct, tuple(map(len, texts)), token_ids=ids, continuations=Continued(texts)
    )


def oracle(texts, rewards, every, samples) -> list[list[float]]:
    advantages = []
    for text, reward in zip(texts, rewards, strict=True):
        row = []
        for t in range(len(text)):
            start = t - t % every
            after = value_of(text[: start + every], samples) if start + every < len(text) else reward
            row.append(0.0 if math.isnan(reward) else after - value_of(text[:start], samples))
        advantages.append(row)
    return advantages


@pytest.mark.parametrize(("every", "samples"), [(1, 9), (2, 3), (3, 1), (32, 9)])
def test_advantages_match_the_oracle(every, samples):
    given = group(TEXTS, REWARDS)
    (credit,) = checked_credits(VineRule(VineConfig(every, samples)), [given])
    for found, expected in zip(credit.advantages, oracle(TEXTS, REWARDS, every, samples), strict=True):
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.double().numpy(), expected, rtol=0, atol=2 * U)
    asked = given.continuations.asked
    assert {n for _, _, n in asked} == {samples} and not any(i == 4 for i, _, _ in asked)
    prefixes = [tuple(TEXTS[i][:t]) for i, t, _ in asked]
    assert len(set(prefixes)) == len(prefixes) == credit.metrics["places"], "equal prefixes are continued once"
    values = [value_of(prefix, samples) for prefix in prefixes]
    assert credit.metrics["value"] == pytest.approx(sum(values) / len(values))


def test_steps_sum_to_the_reward_less_the_value_of_the_prompt():
    credit = VineRule(VineConfig(every=2, samples=5)).credit(group(TEXTS, REWARDS))
    for text, reward, row in zip(TEXTS[:2], REWARDS, credit.advantages, strict=False):
        assert row[::2].sum().item() == pytest.approx(reward - value_of([], 5), abs=8 * U), text
    assert any((row * (2 * reward - 1) < 0).any() for row, reward in zip(credit.advantages, REWARDS, strict=True))


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_groups_whose_outcome_is_sure_have_no_credit(reward):
    sure = replace(group(TEXTS, [reward] * 5), continuations=lambda places, n: [reward] * len(places))
    assert not any(row.any() for row in VineRule(VineConfig(every=2)).credit(sure).advantages)


def test_groups_of_one_and_failed_groups():
    (alone,) = VineRule(VineConfig(samples=4)).credit(group([[5, 6]], [1.0])).advantages
    assert alone.tolist() == [1.0 - value_of([], 4)] * 2
    failed = group([[5, 6], [7]], [NAN, NAN])
    credit = VineRule().credit(failed)
    assert not any(row.any() for row in credit.advantages) and failed.continuations.asked == []
    assert credit.metrics == {"value": 0.0, "places": 0.0}


def test_a_step_is_whitened_over_its_tokens_unless_that_is_off():
    rows = [torch.tensor(row, dtype=torch.float32) for row in oracle(TEXTS, REWARDS, 2, 9)]
    tokens = np.concatenate([row.double().numpy() for row in rows])
    mean, scale = tokens.mean(), math.sqrt(((tokens - tokens.mean()) ** 2).sum() / (len(tokens) - 1) + 1e-8)
    for found, row in zip(checked_over_batch(VineRule(), rows), rows, strict=True):
        np.testing.assert_allclose(found.double().numpy(), (row.double().numpy() - mean) / scale, rtol=0, atol=1e-6)
    off = checked_over_batch(VineRule(VineConfig(whiten=False)), rows)
    assert all(torch.equal(found, row) for found, row in zip(off, rows, strict=True))


def test_continuations_share_no_random_numbers_with_rollouts_or_other_groups(policy, rollouts, monkeypatch):
    seeds = []

    def sample(model, tokenizer, rows, room, seed):
        seeds.append(seed)
        return [torch.tensor([tokenizer.eos_token_id])] * len(rows)

    monkeypatch.setattr(inputs, "continue_ids", sample)
    models = inputs.Models(policy, None, ArithmeticTask())
    values = inputs.continuations(models, [parse_problem(PROMPT)] * 3, rollouts, seed=5)
    for first in (0, 4, 4, 8):
        values([(first, 0), (first + 1, 2)], 3)
    assert seeds[1] == seeds[2] and len({5, *seeds}) == 4
