"""Evaluation prompts keep their sets apart, whatever their texts; scores against fractions by hand."""

from argparse import Namespace
from contextlib import nullcontext

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_shear.train.carriers import FAILED
from openrlhf_shear.train.run.evaluation import Evaluation, Scores, scores_of

LOST = None


def evaluated(rows: list[tuple[str, str]], rewards: list[list[float | None]]) -> dict[str, float]:
    """Return the metrics of an evaluation, and of what it logs, for rows (set, prompt) and each row's rewards."""
    logged = {}
    samples = [
        Experience(
            prompts=[prompt],
            rewards=torch.tensor([reward or 0.0]),
            response_length=torch.tensor([10 * (i + 1)]),
            truncated=torch.tensor([i == 0]),
            info={FAILED: torch.tensor([float(reward is LOST)])},
        )
        for (_, prompt), of_prompt in zip(rows, rewards, strict=True)
        for i, reward in enumerate(of_prompt)
    ]
    args = Namespace(eval=Namespace(steps=1, temperature=0.0, n_samples_per_prompt=len(rewards[0]), before_train=False))
    sampler = Namespace(generate_eval_samples=lambda step, **how: samples, eval_failed=0)
    loader = [([source], [prompt], [""], [None]) for source, prompt in rows]
    tracking = Namespace(log_eval=lambda step, metrics: logged.update(metrics))
    assert Evaluation(args, tracking, sampler, loader, None, {}).run(3, nullcontext()).metrics == logged
    return logged


SHARED = [("math", "a"), ("math", "b"), ("math", "shared"), ("amc", "shared"), ("amc", "c"), ("amc", "d")]


def test_a_prompt_twice_in_a_set_counts_twice():
    logs = evaluated([("math", "a"), ("math", "a"), ("math", "b")], [[1, 1], [0, 1], [0, 0]])
    assert logs["eval_math_pass1"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert logs["eval_math_pass2"] == pytest.approx(2 / 3)
    assert (logs["eval_math_response_length_mean"], logs["eval_math_truncated_rate"]) == (15, 0.5)
    assert logs["eval_num_samples"] == 6


def test_a_prompt_that_lost_a_reward_is_in_pass1_alone():
    logs = evaluated([("math", "a"), ("math", "b")], [[1, LOST], [0, 1]])
    assert logs["eval_math_pass1"] == pytest.approx((1 + 1 / 2) / 2)
    assert logs["eval_math_pass2"] == 1.0
    logs = evaluated([("math", "a"), ("math", "b")], [[1, LOST], [0, 0]])
    assert logs["eval_math_pass2"] == 0.0


def test_sets_that_share_a_prompt_have_their_own_scores():
    """AMC shares a prompt with MATH: by the prompt's text, both rows would count in the set that comes last."""
    logs = evaluated(SHARED, [[1, 0], [0, 0], [1, 1], [0, 0], [0, 1], [0, 0]])
    assert logs["eval_math_pass1"] == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert logs["eval_math_pass2"] == pytest.approx(2 / 3)
    assert logs["eval_amc_pass1"] == pytest.approx((0 + 1 / 2 + 0) / 3)
    assert logs["eval_amc_pass2"] == pytest.approx(1 / 3)
    assert logs["eval_response_length_mean"] == 15


def test_the_names_are_openrlhf_s():
    from openrlhf.trainer.ppo_trainer import compute_eval_metrics

    rows, rewards = [("math", "a"), ("amc", "b")], [[1, 0], [0, 0]]
    loader = [([source], [prompt], [""], [None]) for source, prompt in rows]
    samples = [
        Experience(
            prompts=[prompt],
            rewards=torch.tensor([float(reward)]),
            response_length=torch.tensor([5]),
            truncated=torch.tensor([True]),
        )
        for (_, prompt), of_prompt in zip(rows, rewards, strict=True)
        for reward in of_prompt
    ]
    scores = scores_of(samples, [source for source, _ in rows], 2)
    assert scores.metrics == compute_eval_metrics(loader, samples, 2)
    assert list(scores.sets)[:3] == ["math_pass2", "math_pass1", "math_truncated_rate"]
    assert scores.sets["math_pass1"] == 0.5 and scores.sets["truncated_rate"] == 1.0
    assert scores_of([], [], 2) == Scores()
