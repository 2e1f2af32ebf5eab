"""The filter of rollouts, and its range, is questioned before and while it drops everything."""

from pathlib import Path
from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.train.sampling import samples
from openrlhf_shear.train.sampling.accounts import Accounts

# ── The filter ──


def group(*scores: float) -> list[Experience]:
    return [Experience(scores=torch.tensor([score]), info={}) for score in scores]


def test_prompts_filtered_in_a_row_are_warned_of_with_their_scores(monkeypatch):
    told = []
    monkeypatch.setattr(samples.logger, "warning", told.append)
    made = object.__new__(samples.ShearSamplesGenerator)
    made._counts, made._rejected = Accounts(), []
    made.args = SimpleNamespace(
        algo=SimpleNamespace(dynamic_filtering_range=(0.0, 1.0)), rollout=SimpleNamespace(batch_size=3)
    )
    assert made._passes(group(1.0, 0.0)) and not told
    for scores in ((-1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0)):
        assert not made._passes(group(*scores))
    (line,) = told
    assert line == (
        "3 prompts in a row were filtered: their mean scores are -1 to 0, outside --algo.dynamic_filtering_range 0 1"
    )
    assert made._passes(group(1.0, 0.0)) and not made._rejected
    assert made._counts.filtered_scores == "their mean scores are -1 to 0"


@pytest.mark.parametrize(
    ("score", "consumed"),
    [(None, 2 * 3 - 1), (1.0, 20)],  # the third failed group is the last one replaced
)
def test_an_outage_does_not_use_up_the_episode_and_a_filter_may(monkeypatch, score, consumed):
    """Every reward fails, or every group has the same score; a batch is of three prompts, the episode of 20."""
    made = object.__new__(samples.ShearSamplesGenerator)
    made._counts, made._rejected, made._evaluates, made._engines = Accounts(), [], False, SimpleNamespace(handles=["e"])
    made.args = SimpleNamespace(
        algo=SimpleNamespace(dynamic_filtering_range=(0.0, 1.0)),
        rollout=SimpleNamespace(batch_size=100, n_samples_per_prompt=2),
    )
    made.check_stop = lambda: None
    made._dispatch = lambda prompts, busy, asked: {prompt.place: (prompt, "e") for prompt in prompts}
    made._process_response_into_experience = lambda answer, **asked: Experience(
        scores=torch.tensor([score or 0.0]), info={samples.FAILED: torch.tensor([float(score is None)])}
    )
    monkeypatch.setattr(samples.ray, "wait", lambda refs, **how: (refs[:1], refs[1:]))
    monkeypatch.setattr(samples.ray, "get", lambda ref: ["first", "second"])
    prompts = (samples.Prompt((number,), "1+1=", "2", None) for number in range(20))
    assert made._generate(prompts, 3, True, {}) == ([], consumed)
    assert made._counts.dispatched == 2 * consumed and len(list(prompts)) == 20 - consumed


REWARD = 'def reward_func(queries, prompts, labels): return {"rewards": %s, "extra_logs": {%s}}\n'


@pytest.mark.parametrize(
    ("reward", "words", "said"),
    [
        ("-1.0", "", None),
        ("0.0", "--algo.dynamic_filtering_enable", None),
        (
            "-1.0",
            "--algo.dynamic_filtering_enable",
            "mine.py gives -1 to 'I do not know.', outside --algo.dynamic_filtering_range 0 1",
        ),
        ("-1.0", "--algo.dynamic_filtering_enable --algo.dynamic_filtering_range -1 1", None),
    ],
)
def test_the_range_is_held_against_the_reward_that_is_tried(job, capsys, reward, words, said):
    Path("mine.py").write_text(REWARD % (reward, ""))
    parse(job(f"--reward.remote_url mine.py {words}"))
    told = capsys.readouterr().err
    assert said in told if said else "dynamic_filtering_range" not in told


def test_extra_logs_that_are_named_as_metrics_are_told_before_training(job, capsys):
    Path("mine.py").write_text(REWARD % ("0.0", "'score': 1.0, 'turns': 2.0"))
    parse(job("--reward.remote_url mine.py"))
    told = capsys.readouterr().err
    assert "has score, which is a metric of training; it is logged as extra_score" in told and "turns" not in told


@pytest.mark.parametrize(
    ("words", "clip"),
    [
        ("", None),
        ("AS rloo", None),
        ("--reward.clip_range -10 10", [-10.0, 10.0]),
        ("AS gae --critic.num_gpus_per_node 2", (-10, 10)),
        ("AS reinforce", (-10, 10)),
        ("AS gae --critic.num_gpus_per_node 2 --reward.clip_range -1 1", [-1.0, 1.0]),
    ],
)
def test_the_clip_by_default_is_of_estimators_without_a_baseline(job, words, clip):
    assert vars(parse(job(words)))["reward.clip_range"] == clip


def test_greedy_evaluation_is_allowed_and_several_greedy_rollouts_are_questioned(job, capsys):
    line = "--eval.dataset prompts.jsonl --eval.temperature 0"
    parse(job(line))
    assert "--eval.temperature 0 makes the 4 rollouts of an evaluation prompt alike" in capsys.readouterr().err
    parse(job(f"{line} --eval.n_samples_per_prompt 1"))
    assert "alike" not in capsys.readouterr().err
