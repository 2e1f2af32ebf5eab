"""`sdpo` against loops over tokens in float64; U is float32's roundoff.

The rule computes in float32: a difference of log-probs, of at most some 2 nats here, two products and a sum. GRPO's
advantage is right to 16 U (`test_spro_rule.py`).
"""

import numpy as np
import pytest
from test_rlsd_rule import NAN, U, hinted_group, random_rows
from test_spro_rule import grpo

from openrlhf_shear.config.rules import SdpoConfig
from openrlhf_shear.credit.checks import checked_credits
from openrlhf_shear.credit.rules.sdpo import SdpoRule


def oracle(hinted, plain, rewards, share=1.0) -> list[list[float]]:
    advantages = []
    for i, outcome in enumerate(grpo(rewards)):
        hints = [j for j, reward in enumerate(rewards) if j != i and reward > 0.5]
        gains = [with_hint - without for with_hint, without in zip(hinted[i], plain[i], strict=True)]
        if rewards[i] != rewards[i]:  # NaN
            advantages.append([0.0] * len(gains))
        else:
            advantages.append([(1 - share) * outcome + share * (gain if hints else 0.0) for gain in gains])
    return advantages


def made(hinted, plain, rewards, **knobs) -> tuple[list[np.ndarray], dict[str, float]]:
    (credit,) = checked_credits(SdpoRule(SdpoConfig(**knobs)), [hinted_group(hinted, plain, rewards)])
    return [values.double().numpy() for values in credit.advantages], credit.metrics


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("seed", range(6))
def test_advantages_match_the_oracle(share, seed):
    rows = random_rows(seed)
    found, _ = made(*rows, share=share)
    outcome = max(map(abs, grpo(rows[2])))
    for values, expected in zip(found, oracle(*rows, share=share), strict=True):
        np.testing.assert_allclose(values, expected, rtol=0, atol=U * (20 * outcome + 8))


def test_signs_are_the_hint_s_whatever_the_reward():
    hinted, plain = [[-1.0, -3.0]] * 3, [[-2.0, -2.0]] * 3
    found, metrics = made(hinted, plain, [1.0, 1.0, 0.0])
    assert [values.tolist() for values in found] == [[1.0, -1.0]] * 3 and metrics == {"gain": 0.0}


def test_the_only_correct_rollout_has_no_hint_and_gives_one():
    found, metrics = made([[-1.0]] * 3, [[-1.5]] * 3, [1.0, 0.0, NAN])
    assert [values.item() for values in found] == [0.0, 0.5, 0.0]
    assert metrics["gain"] == pytest.approx(1 / 3)  # the failed rollout has a hint too
    assert made([[-2.0]] * 2, [[-1.0]] * 2, [1.0, 1.0])[1] == {"gain": -1.0}


@pytest.mark.parametrize("rewards", [[0.0, 0.0], [1.0], [0.0], [NAN, NAN], [1.0, NAN]])
def test_without_another_correct_rollout_nothing_is_credited(rewards):
    found, _ = made([[-1.0, -2.0]] * len(rewards), [[-1.001, -3.0]] * len(rewards), rewards)
    assert not found[0].any() and not (found[-1].any() and rewards[-1] != rewards[-1])


def test_a_group_that_is_all_right_is_credited_by_the_hints():
    found, _ = made([[-1.0]] * 2, [[-1.5]] * 2, [1.0, 1.0])
    assert [values.item() for values in found] == [0.5, 0.5]


def test_a_hint_that_changes_nothing_leaves_grpo_s_part():
    _, plain, rewards = random_rows(2)
    found, _ = made(plain, plain, rewards, share=0.25)
    for values, outcome in zip(found, grpo(rewards), strict=True):
        assert values.tolist() == pytest.approx([0.75 * outcome] * len(values), abs=20 * U * abs(outcome))
    empty, metrics = made([[], []], [[], []], [1.0, 1.0])
    assert [len(values) for values in empty] == [0, 0] and metrics == {"gain": 0.0}
