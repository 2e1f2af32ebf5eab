"""The filter of rollouts, and its range, is questioned before and while it drops everything."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest
import ray
import torch
from cases import cases
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.train.carriers import Accounts
from openrlhf_shear.train.sampling import rollout_rewards
from openrlhf_shear.train.sampling.order import PromptOrder
from openrlhf_shear.train.sampling.rollout_rewards import DynamicFilter
from openrlhf_shear.train.sampling.samples import ShearSamplesGenerator

# ── The filter ──


def group(*scores: float) -> list[Experience]:
    return [Experience(scores=torch.tensor([score]), info={}) for score in scores]


def test_prompts_filtered_in_a_row_are_warned_of_with_their_scores(monkeypatch):
    warnings, counts = [], Accounts()
    monkeypatch.setattr(rollout_rewards.logger, "warning", warnings.append)
    wanted = DynamicFilter((0.0, 1.0), 3, counts)
    assert wanted.accepts(group(1.0, 0.0)) and not warnings
    for scores in ((-1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0)):
        assert not wanted.accepts(group(*scores))
    assert warnings == [
        "3 prompts in a row were filtered: their mean scores are -1 to 0, outside --algo.dynamic_filtering_range 0 1"
    ]
    assert counts.filtered == 6 and counts.filtered_scores == "their mean scores are -1 to 0"
    assert wanted.accepts(group(1.0, 0.0)) and not wanted.accepts(group(-0.5, -0.5))
    assert counts.filtered_scores == "their mean scores are -0.5 to -0.5", "in a row"


@pytest.mark.parametrize(
    ("reward", "consumed"),
    [(float("nan"), 2 * 3 - 1), (1.0, 20)],  # the third failed group is the last one replaced
)
def test_an_outage_does_not_use_up_the_episode_and_a_filter_may(monkeypatch, reward, consumed):
    """Every reward fails, or every group has the same score; a batch is of three prompts, the episode of 20."""
    response = {"prompt": "1+1=", "label": "2", "observation_tokens": [3, 4], "action_ranges": [(1, 2)]}
    response |= {"rollout_log_probs": None, "reward": reward, "scores": None}
    sent = itertools.count()
    engine = type("Engine", (), {"generate_responses": SimpleNamespace(remote=lambda *request: next(sent))})()
    args = SimpleNamespace(
        algo=SimpleNamespace(dynamic_filtering_enable=True, dynamic_filtering_range=(0.0, 1.0)),
        reward=SimpleNamespace(remote_url="agent"),
        rollout=SimpleNamespace(
            batch_size=3, vllm_generate_batch_size=None, n_samples_per_prompt=2, temperature=1.0, top_p=1.0
        ),
        train=SimpleNamespace(seed=0, agent_func_path="agent.py"),
        vllm=SimpleNamespace(enable_sleep=False),
    )
    loader, order = [(["toy"], ["1+1="], ["2"], [None])] * 20, PromptOrder(20, 0)
    engines, tokenizer = SimpleNamespace(handles=[engine]), SimpleNamespace(decode=lambda tokens: "")
    generator = ShearSamplesGenerator(SimpleNamespace(args=args), loader, None, tokenizer, engines, order)
    monkeypatch.setattr(ray, "wait", lambda refs, **how: (refs[:1], refs[1:]))
    monkeypatch.setattr(ray, "get", lambda ref: [response] * 2)
    generator.start_episode(0)
    assert generator.generate_samples() == ([], 0.0)
    assert (generator.consumed, generator.ended) == (consumed, consumed == 20)
    counts = generator.take_counts()
    assert counts.dispatched == 2 * consumed == counts.filtered + sum(counts.failed.values())


REWARD = 'def reward_func(queries, prompts, labels): return {"rewards": %s, "extra_logs": {%s}}\n'


@pytest.mark.parametrize(*cases("train", "test_the_range_is_held_against_the_reward_that_is_tried"))
def test_the_range_is_held_against_the_reward_that_is_tried(job, capsys, reward, words, said):
    Path("mine.py").write_text(REWARD % (reward, ""))
    parse(job(f"--reward.remote_url mine.py {words}"))
    told = capsys.readouterr().err
    assert said in told if said else "dynamic_filtering_range" not in told


@pytest.mark.parametrize(*cases("train", "test_the_clip_by_default_is_of_estimators_without_a_baseline"))
def test_the_clip_by_default_is_of_estimators_without_a_baseline(job, words, clip):
    found = vars(parse(job(words)))["reward.clip_range"]
    assert (found and [*found]) == clip
