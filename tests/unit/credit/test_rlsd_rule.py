"""`rlsd` against loops over tokens in float64; U is float32's roundoff.

The rule computes weights, between 0.5 and 1.5 here, in float32: a difference, an exponential and three further
operations. A difference of log-probs near -10 has an error of 10 U; 20 U is ample. A token's advantage is rounded once
more.
"""

import math

import numpy as np
import pytest
import torch

from openrlhf_shear.config.rules import RlsdConfig
from openrlhf_shear.credit import RolloutGroup
from openrlhf_shear.credit.apply import token_advantages, weighed
from openrlhf_shear.credit.baselines import outcome_advantages
from openrlhf_shear.credit.rules.rlsd import RlsdRule

U = 2**-24
NAN = float("nan")


def hinted_group(hinted, plain, rewards, step=1) -> RolloutGroup:
    """A group with float32 log-probs, as lists, under a hint and without it."""
    correct = tuple(None if math.isnan(reward) else reward > 0.5 for reward in rewards)
    rows = {"hint_log_probs": hinted, "log_probs": plain}
    tensors = {name: tuple(torch.tensor(row, dtype=torch.float32) for row in each) for name, each in rows.items()}
    return RolloutGroup(0, tuple(rewards), correct, tuple(map(len, plain)), step=step, **tensors)


def random_rows(seed):
    """4 to 9 rollouts of 0 to 30 tokens: log-probs under the hint and without it, rewards of all kinds."""
    rng = np.random.default_rng(seed)
    lengths = [3, 5, *(int(rng.choice([0, 1, rng.integers(2, 31)])) for _ in range(rng.integers(2, 8)))]
    plain = [(-rng.exponential(size=n)).astype(np.float32) for n in lengths]
    hinted = [(row + rng.normal(size=len(row)) * 0.3).astype(np.float32) for row in plain]
    rewards = [1.0, 0.0, *rng.choice([0.0, 1.0, 1.0, NAN], size=len(lengths) - 2).tolist()]
    return [row.tolist() for row in hinted], [row.tolist() for row in plain], rewards


def oracle(hinted, plain, rewards, base, strength=0.5, clip=0.2) -> list[list[float]]:
    advantages = []
    for i, a in enumerate(base):
        others = [rewards[j] for j in range(len(rewards)) if j != i and rewards[j] > 0.5]
        advantages.append([])
        for with_hint, without in zip(hinted[i], plain[i], strict=True):
            gain = with_hint - without if others else 0.0
            weight = math.exp(gain if a > 0 else -gain if a < 0 else 0.0)
            weight = min(max(weight, 1 - clip), 1 + clip)
            advantages[i].append(a * (1 - strength + strength * weight))
    return advantages


def made(hinted, plain, rewards, step=1, **knobs) -> tuple[list[np.ndarray], list[float]]:
    """The token advantages that the update gets, and the rollouts' own."""
    rule, base = RlsdRule(RlsdConfig(**knobs)), outcome_advantages(rewards).tolist()
    ((credit, _),) = weighed(rule, [hinted_group(hinted, plain, rewards, step)], [range(len(rewards))])
    whole = {i: torch.full((len(plain[i]),), a) for i, a in enumerate(base)}
    tokens = token_advantages(rule, [credit], whole)
    return [tokens[i].advantages.double().numpy() for i in range(len(rewards))], base


@pytest.mark.parametrize("knobs", [{}, {"strength": 1.0, "clip": 0.5}, {"strength": 0.2, "clip": 0.0}])
@pytest.mark.parametrize("seed", range(6))
def test_advantages_match_the_oracle_and_keep_every_sign(knobs, seed):
    rows = random_rows(seed)
    found, base = made(*rows, **knobs)
    for values, expected, a in zip(found, oracle(*rows, base, **knobs), base, strict=True):
        np.testing.assert_allclose(values, expected, rtol=0, atol=21 * U * abs(a) * 1.5)
        assert (np.sign(values) == np.sign(a)).all()


def test_the_hint_moves_most_tokens_and_some_to_the_clip():
    hinted, plain, rewards = random_rows(1)
    found, base = made(hinted, plain, rewards)
    factors = np.concatenate([values / a for values, a in zip(found, base, strict=True) if a])
    assert (factors != 1).mean() > 0.8 and factors.min() == pytest.approx(0.9) and factors.max() == pytest.approx(1.1)


def test_a_token_that_the_hint_supports_has_more_praise_and_less_blame():
    found, base = made([[-1.0], [-1.0]], [[-1.1], [-1.1]], [1.0, 0.0])
    assert found[0][0] == base[0], "the only correct rollout has no hint"
    found, base = made([[-1.0], [-1.0], [-1.0]], [[-1.1], [-1.1], [-1.1]], [1.0, 1.0, 0.0])
    assert found[0][0] / base[0] == pytest.approx((1 + math.exp(0.1)) / 2, abs=40 * U)
    assert found[2][0] / base[2] == pytest.approx((1 + math.exp(-0.1)) / 2, abs=40 * U)


@pytest.mark.parametrize("rewards", [[0.0, 0.0, 0.0], [1.0], [0.0, NAN, 0.0], [NAN]])
def test_without_another_correct_rollout_weights_are_1(rewards):
    hinted = [[-1.0, -2.0]] * len(rewards)
    credit = RlsdRule().credit(hinted_group(hinted, [[-1.001, -3.0]] * len(rewards), rewards))
    for weights in (*credit.weights, *credit.negative_weights):
        assert weights.tolist() == [1.0, 1.0]
    assert credit.metrics["gain"] == 0.0


def test_all_right_is_weighed_but_has_no_advantage():
    credit = RlsdRule().credit(hinted_group([[-1.0]] * 2, [[-2.0]] * 2, [1.0, 1.0]))
    assert [w.item() for w in credit.weights] == pytest.approx([1.1, 1.1])
    assert not any(values.any() for values in made([[-1.0]] * 2, [[-2.0]] * 2, [1.0, 1.0])[0])


def test_the_strength_falls_in_a_line_over_the_steps():
    rows = [[-1.0]] * 3, [[-3.0]] * 3, [1.0, 1.0, 0.0]
    by_step = []
    for step in (1, 2, 3, 5, 6, 9):
        found, base = made(*rows, step=step, decay_steps=4)
        by_step.append(found[0][0] / base[0])
    assert by_step == pytest.approx([1.1, 1.075, 1.05, 1.0, 1.0, 1.0], abs=1e-6)


def test_empty_responses_and_gains_without_end():
    credit = RlsdRule().credit(hinted_group([[], []], [[], []], [1.0, 1.0]))
    assert [len(w) for w in credit.weights] == [0, 0] and credit.metrics == {"gain": 0.0}
    far = RlsdRule().credit(hinted_group([[-1.0]] * 2, [[-2000.0]] * 2, [1.0, 1.0]))
    assert far.weights[0].item() == pytest.approx(1.1) and far.negative_weights[0].item() == pytest.approx(0.9)
