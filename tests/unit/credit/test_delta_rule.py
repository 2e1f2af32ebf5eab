"""`delta` against the authors' algorithm in float64, vector by vector, with squared distances as they have them.

The rule's margins are float32 sums of a few products, divided by their deviation: the largest difference of a weight
over these seeds was 4e-7.
"""

import math
from dataclasses import replace

import pytest
import torch
from logit_groups import NAN, logit_group, probabilities, random_group

from openrlhf_shear.config.rules import DeltaConfig
from openrlhf_shear.credit.rules.delta import DeltaRule

NOISE = 5e-6
SEEDS = range(8)


def proxy(group, i, t) -> list[float]:
    surprise = 1 - probabilities(group, i, t)[int(group.token_ids[i][t])]
    return [surprise * value for value in group.source_states[i][t].tolist()]


def mean_of(vectors, weights) -> list[float]:
    total = math.fsum(weights)
    return [math.fsum(w * v[k] for v, w in zip(vectors, weights, strict=True)) / total for k in range(len(vectors[0]))]


def far(a, b) -> float:
    return math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def deviation(values) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(max(math.fsum(v * v for v in values) / len(values) - mean**2, 1e-8))


def oracle(group, low=0.8, high=1.2, rounds=1) -> list[list[float]]:
    weights = [[1.0] * n for n in group.lengths]
    rated = [reward for reward in group.rewards if not math.isnan(reward)]
    mean = math.fsum(rated) / max(len(rated), 1)
    sides = {}
    for sign in (1, -1):
        tokens = [(i, t) for i, n in enumerate(group.lengths) for t in range(n) if sign * (group.rewards[i] - mean) > 0]
        sides[sign] = [(i, t, proxy(group, i, t), abs(group.rewards[i] - mean)) for i, t in tokens]
    if not sides[1] or not sides[-1]:
        return weights
    mu = {sign: mean_of([v for _, _, v, _ in side], [a for *_, a in side]) for sign, side in sides.items()}

    def margins(sign):
        return [far(v, mu[-sign]) - far(v, mu[sign]) for _, _, v, _ in sides[sign]]

    gamma = {sign: deviation(margins(sign)) for sign in sides}
    for _ in range(rounds):
        before, new = {sign: margins(sign) for sign in sides}, {}
        for sign, side in sides.items():
            near = [a / (1 + math.exp(-m / gamma[sign])) for (*_, a), m in zip(side, before[sign], strict=True)]
            new[sign] = mean_of([v for _, _, v, _ in side], near)
        mu, gamma = new, {sign: deviation(before[sign]) for sign in sides}
    for sign, side in sides.items():
        for (i, t, *_), m in zip(side, margins(sign), strict=True):
            weights[i][t] = low + (high - low) / (1 + math.exp(-m / gamma[sign]))
    counted = [(i, t) for side in sides.values() for i, t, *_ in side]
    scale = len(counted) / math.fsum(weights[i][t] for i, t in counted)
    for i, t in counted:
        weights[i][t] *= scale
    return weights


def made(group, **knobs) -> list[list[float]]:
    return [row.tolist() for row in DeltaRule(DeltaConfig(**knobs)).credit(group).weights]


def assert_close(found, expected, noise=NOISE):
    for a, b in zip(found, expected, strict=True):
        assert a == pytest.approx(b, abs=noise)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("knobs", [{}, {"rounds": 0}, {"rounds": 3}, {"low": 0.1, "high": 2.5, "rounds": 2}])
def test_weights_match_the_oracle(knobs, seed):
    group = random_group(seed)
    assert_close(made(group, **knobs), oracle(group, **knobs))
    graded = replace(group, rewards=tuple(reward + 0.1 * i for i, reward in enumerate(group.rewards)))
    assert_close(made(graded, **knobs), oracle(graded, **knobs))


def test_rounds_and_sides_matter_to_the_oracle_s_weights():
    """Else a rule that leaves them out would pass."""
    group = random_group(1)
    a, b, c = ([w for row in oracle(group, rounds=k) for w in row] for k in (0, 1, 3))
    assert max(abs(x - y) for x, y in zip(a, b, strict=True)) > 100 * NOISE
    assert max(abs(x - y) for x, y in zip(b, c, strict=True)) > 100 * NOISE


def test_a_worked_example():
    """Axis 0 is right, axis 1 wrong, axis 2 shared: tokens on their own axis weigh more than those on the shared one.

    Centroids (1/2, 0, 1/2) and (0, 1/2, 1/2), margins 1 on the own axis and 0 on the shared one, deviation 1/2. A round
    with sigmoid(2) = 0.881 and 0.5 moves the centroids to (0.638, 0, 0.362): margins 2 * 0.638^2 + ... as below.
    """
    axes = torch.eye(3)
    states = (axes[[0, 2]], axes[[1, 2]])
    group = replace(logit_group([2, 2], [1, 0]), source_states=states, log_probs=(torch.full((2,), -100.0),) * 2)
    high = 1 / (1 + math.exp(-2))
    near = high / (high + 0.5)
    own = near**2 + 1 - ((1 - near) ** 2)  # |v - mu_other|^2 - |v - mu_own|^2 without the shared axis' equal part
    assert own == pytest.approx(2 * near)
    weights = [0.8 + 0.4 / (1 + math.exp(-2 * margin / 1.0)) for margin in (2 * near, 0.0)]
    mean = sum(weights) / 2
    for row in made(group):
        assert row == pytest.approx([weight / mean for weight in weights], abs=1e-6)
    credit = DeltaRule().credit(group)
    assert credit.metrics["centroids_apart"] == pytest.approx(near / math.hypot(near, 1 - near) / 2**0.5)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_sign_changes_and_the_mean_is_1(seed):
    group = random_group(seed)
    rows = [row for row, outcome in zip(made(group), group.correct, strict=True) if outcome is not None]
    weights = [weight for row in rows for weight in row]
    assert min(weights) > 0.8 / 1.2 and max(weights) < 1.2 / 0.8
    assert sum(weights) / len(weights) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("rewards", [[1, 1, 1], [0, 0, 0], [0.1, 0.1, 0.1], [1, NAN, 1], [NAN] * 3])
def test_groups_without_two_sides_are_grpo(rewards):
    credit = DeltaRule().credit(logit_group([3, 1, 4], rewards))
    assert [row.tolist() for row in credit.weights] == [[1.0] * 3, [1.0], [1.0] * 4] and credit.metrics == {}


def test_empty_and_one_token_responses():
    assert made(logit_group([4], [1])) == [[1.0] * 4], "a group of one"
    assert made(logit_group([4, 0], [1, 0])) == [[1.0] * 4, []], "the only incorrect response is empty"
    single = logit_group([1, 1], [1, 0])
    assert_close(made(single), oracle(single))
    several = logit_group([1, 1, 1, 1], [1, 0, 0, 1])
    assert_close(made(several), oracle(several))


def test_rollouts_without_a_reward_count_nowhere():
    with_it = logit_group([4, 3, 7], [1, 0, NAN])
    cut = {name: value[:2] for name, value in vars(with_it).items() if isinstance(value, tuple)}
    assert made(with_it) == [*made(replace(with_it, **cut)), [1.0] * 7]


def test_scaled_rewards_and_shifted_rewards_give_the_same():
    group = logit_group([4, 3, 5], [1, 0, 1])
    other = replace(group, rewards=tuple(5 * reward - 2 for reward in group.rewards))
    assert_close(made(other), made(group))


def test_states_may_be_bfloat16():
    group = logit_group([6, 4], [1, 0], dtype=torch.bfloat16)
    assert_close(made(group), oracle(group))
