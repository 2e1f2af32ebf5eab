"""`spro` against loops over rollouts and tokens in float64; U is float32's roundoff.

The rule sums log-ratios in float64 and GRPO's advantages, of at most 9 rollouts, in float32. The mean and deviation of
so few numbers are right to 16 U of the advantage; the sum is then rounded once.
"""

import math

import numpy as np
import pytest
import torch

from openrlhf_shear.config.rules import SproConfig
from openrlhf_shear.credit import RolloutGroup
from openrlhf_shear.credit.checks import checked_credits
from openrlhf_shear.credit.rules.spro import SproRule

U = 2**-24
NAN = float("nan")


def group(policy, reference, rewards) -> RolloutGroup:
    correct = tuple(None if math.isnan(reward) else reward > 0.5 for reward in rewards)
    rows = {"log_probs": policy, "ref_log_probs": reference}
    tensors = {name: tuple(torch.tensor(row, dtype=torch.float32) for row in each) for name, each in rows.items()}
    return RolloutGroup(0, tuple(rewards), correct, tuple(map(len, policy)), **tensors)


def random_group(seed):
    """4 to 9 rollouts of 0 to 30 tokens; log-probs as float32 has them; a fifth of the rewards failed."""
    rng = np.random.default_rng(seed)
    lengths = [3, 5, *(int(rng.choice([0, 1, rng.integers(2, 31)])) for _ in range(rng.integers(2, 8)))]
    policy, reference = ([(-rng.exponential(size=n)).astype(np.float32).tolist() for n in lengths] for _ in range(2))
    return policy, reference, [1.0, 0.0, *(rng.choice([0.0, 1.0, 0.25, NAN], size=len(lengths) - 2).tolist())]


def grpo(rewards) -> list[float]:
    known = [reward for reward in rewards if not math.isnan(reward)]
    mean = math.fsum(known) / max(len(known), 1)
    deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in known) / max(len(known) - 1, 1))
    return [
        0.0 if math.isnan(r) or len(known) < 2 or deviation == 0 else (r - mean) / (deviation + 1e-9) for r in rewards
    ]


def oracle(policy, reference, rewards, beta=0.05) -> list[list[float]]:
    sums = []
    for row, other in zip(policy, reference, strict=True):
        sums.append([beta * math.fsum(row[j] - other[j] for j in range(t + 1)) for t in range(len(row))])
    advantages = []
    for i, outcome in enumerate(grpo(rewards)):
        advantages.append([])
        for t in range(len(sums[i])):
            peers = [sums[k][t] for k in range(len(sums)) if t < len(sums[k]) and not math.isnan(rewards[k])]
            advantages[i].append(
                0.0 if math.isnan(rewards[i]) else outcome + sums[i][t] - math.fsum(peers) / len(peers)
            )
    return advantages


def made(policy, reference, rewards, **knobs):
    credit = checked_credits(SproRule(SproConfig(**knobs)), [group(policy, reference, rewards)])[0]
    assert all(values.dtype == torch.float32 for values in credit.advantages)
    return [values.double().numpy() for values in credit.advantages], credit.metrics


@pytest.mark.parametrize("beta", [0.05, 2.0])
@pytest.mark.parametrize("seed", range(8))
def test_advantages_match_the_oracle(beta, seed):
    given = random_group(seed)
    found, metrics = made(*given, beta=beta)
    expected = oracle(*given, beta=beta)
    outcome = max(map(abs, grpo(given[2])))
    for values, row in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, row, rtol=U, atol=16 * U * outcome + 1e-9)
    steps = [abs(value - a) for row, a, r in zip(expected, grpo(given[2]), given[2], strict=True)
             for value in row if not math.isnan(r)]  # fmt: skip
    assert metrics["process"] == pytest.approx(math.fsum(steps) / len(steps), abs=1e-9) and metrics["process"] > 0


def test_the_groups_of_the_oracle_change_signs_and_have_failed_rewards():
    groups = [random_group(seed) for seed in range(8)]
    assert any(math.isnan(reward) for _, _, rewards in groups for reward in rewards)
    changed = [value * a < 0 for policy, reference, rewards in groups
               for row, a in zip(oracle(policy, reference, rewards, beta=2.0), grpo(rewards), strict=True)
               for value in row]  # fmt: skip
    assert any(changed)


def test_a_reference_model_that_is_the_policy_leaves_grpo():
    policy, _, rewards = random_group(3)
    found, metrics = made(policy, policy, rewards)
    for values, a in zip(found, grpo(rewards), strict=True):
        assert values.tolist() == pytest.approx([a] * len(values), abs=16 * U * abs(a)) and metrics["process"] == 0.0


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_rewards_leave_the_second_part_which_sums_to_0_at_each_step(reward):
    policy, reference, _ = random_group(4)
    found, _ = made(policy, reference, [reward] * len(policy))
    for t in range(max(map(len, policy))):
        column = [values[t] for values in found if len(values) > t]
        assert math.fsum(column) == pytest.approx(0, abs=U * sum(map(abs, column)))
    assert max(abs(values).max() for values in found if len(values)) > 0.01


def test_a_token_without_a_peer_has_the_outcome_alone():
    found, _ = made([[-1.0, -2.0, -3.0], [-1.0]], [[-2.0, -1.0, -9.0], [-3.0]], [1.0, 0.0])
    half = math.sqrt(0.5)
    assert found[0].tolist() == pytest.approx([half - 0.025, half, half], abs=1e-6)
    assert found[1].tolist() == pytest.approx([-half + 0.025], abs=1e-6)


def test_a_group_of_one_and_failed_rewards_have_no_credit():
    assert not made([[-1.0, -2.0]], [[-2.0, -1.0]], [1.0])[0][0].any()
    for rewards in ([NAN], [NAN, NAN]):
        found, metrics = made([[-1.0]] * len(rewards), [[-2.0]] * len(rewards), rewards)
        assert not any(values.any() for values in found) and metrics == {}
    assert [len(values) for values in made([[], []], [[], []], [1.0, 0.0])[0]] == [0, 0]
