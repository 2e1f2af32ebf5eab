"""A threshold that counts all rewards alike is told once, with the scores and the setting."""

import pytest
import torch
from cases import cases

from openrlhf_shear.credit.groups import Outcomes
from openrlhf_shear.credit.rule import GroupCredit


def group(rewards, threshold=0.5, weights=((1.0, 1.0), (1.0, 1.0))):
    correct = tuple(None if reward != reward else reward >= threshold for reward in rewards)
    return GroupCredit((0, 1), tuple(rewards), correct, {}, 0.0, weights=tuple(map(torch.tensor, weights)))


def watch(threshold=0.5):
    return Outcomes("--credit.correct_threshold", threshold, "--credit.correct_reward")


@pytest.mark.parametrize(*cases("credit", "test_rewards_on_one_side_are_told_once_with_scores_and_flag"))
def test_rewards_on_one_side_are_told_once_with_scores_and_flag(rewards, said):
    outcomes = watch()
    equal = (1.0, 1.0) if min(rewards) >= 0.5 else (0.1, 0.1)
    assert outcomes.note([group(equal)]) == ""  # equal rewards are no case for a threshold
    line = outcomes.note([group(rewards)])
    assert said in line and "1 of 2 groups" in line and "--credit.correct_reward" in line
    assert f"between {min(rewards):g} and {max(rewards):g}" in line and outcomes.note([group(rewards)]) == ""
    assert "2 of 3 groups" in outcomes.shown()


def test_each_group_on_a_side_of_its_own():
    line = watch().note([group((1.5, 0.5)), group((0.2, 0.1)), group((0.15, 0.1))])
    assert "3 of 3 groups" in line and "0.1 to 1.5 are on one side of" in line and "another threshold" in line


def test_a_mixed_group_or_token_credit_ends_the_watch():
    for other in (group((1.0, 0.0)), group((1.5, 0.5), weights=((2.0, 0.5), (1.0, 1.0)))):
        outcomes = watch()
        assert outcomes.note([group((1.5, 0.5)), other]) == "" and outcomes.shown() == ""
        assert outcomes.note([group((1.5, 0.5))]) == ""


def test_failed_rewards_do_not_count():
    outcomes = watch()
    assert outcomes.note([group((1.5, float("nan")))]) == "" and outcomes.shown() == ""
    assert "scores 0.5, 1.5 " in outcomes.note([group((1.5, 0.5)), group((float("nan"), 0.5))])
