"""Rewards that cannot work are refused before Ray starts."""

import pytest
from command_lines import check_refused, refusal

from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.rewards.jail import JailError


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ("--reward.remote_url nowhere.py", ["reward.remote_url names a file that is not there", "'nowhere.py'"]),
        ("--reward.remote_url prompts.jsonl", ["reward.remote_url is no reward", "math, code, the path of a .py file"]),
        ("--reward.remote_url math,code", ["reward.remote_url is no reward", "'math,code'"]),
        ("--reward.remote_url http://one:5000,reward.py", ["reward.remote_url names a file that is not there"]),
        ("--reward.remote_url empty.py", ["reward.remote_url names a file without reward_func", "'empty.py'"]),
        (
            "--reward.remote_url code --algo.advantage.estimator group_norm --train.async_enable",
            ["reward.remote_url does not go with --train.async_enable", "cli.serve_reward"],
        ),
        ("--reward.timeout -1", ["reward.timeout must be at least 0"]),
        ("--reward.memory_mb 1", ["reward.memory_mb must be at least 64"]),
    ],
)
def test_refused(job, capsys, changes, parts):
    check_refused(capsys, job(changes), parts)


@pytest.mark.parametrize("reward", ["math", "code"])
def test_built_in_rewards_are_refused_without_labels_and_without_a_jail(job, capsys, monkeypatch, reward):
    def no_jail(allow_unsandboxed=False):
        if not allow_unsandboxed:
            raise JailError("no jail works here: bubblewrap is not installed")

    monkeypatch.setattr("openrlhf_shear.preflight.inputs.find_jail", no_jail)
    told = refusal(capsys, job(f"--reward.remote_url {reward}", without="data.label_key"))
    assert f"data.label_key is needed: --reward.remote_url {reward}" in told
    told = refusal(capsys, job(f"--reward.remote_url {reward}"))
    assert f"reward.remote_url {reward}: no jail works here" in told
    assert parse(job(f"--reward.remote_url {reward} --reward.allow_unsandboxed"))
