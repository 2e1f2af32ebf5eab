"""Curves of a run's TensorBoard logs, also of a resumed run."""

import os

import pytest

from openrlhf_shear.evaluation.comparison.runs import continued, read_curves

CURVES = {
    "train/rollout/reward_mean": [(i + 1, i / 10) for i in range(8)],
    "train/timing/step_total": [(i + 1, 2.0) for i in range(8)],
    "train/shear/credit_share": [(i + 1, 0.25) for i in range(8)],
    "eval/eval_arithmetic_pass1": [(0, 0.375), (8, 0.5)],
    "eval/eval_num_samples": [(0, 64.0), (8, 64.0)],
}


def write_log(folder, curves):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(log_dir=str(folder)) as writer:
        for tag, points in curves.items():
            for step, value in points:
                writer.add_scalar(tag, value, step)


def test_a_resumed_run_is_one_curve_and_a_new_one_replaces_the_old(tmp_path):
    """The names of logs tell their order; a copied folder has other times."""
    tags = ("train/rollout/reward_mean", "train/timing/step_total")

    def write(name, steps, reward, begun):
        write_log(tmp_path / name, {tag: [(step, reward) for step in steps] for tag in tags})
        for file in (tmp_path / name).iterdir():
            parts = file.name.split(".")
            copied = file.rename(file.with_name(".".join([*parts[:3], str(begun), *parts[4:]])))
            os.utime(copied, (2**33 - begun, 2**33 - begun))

    write("first", range(1, 7), 0.25, begun=1)
    write("resumed", range(5, 9), 0.5, begun=2)
    assert read_curves(tmp_path)[tags[0]] == [*((s, 0.25) for s in range(1, 5)), *((s, 0.5) for s in range(5, 9))]
    write_log(tmp_path / "empty", {})
    assert len(read_curves(tmp_path)[tags[0]]) == 8
    write("anew", range(1, 3), 0.75, begun=2**33)
    assert read_curves(tmp_path)[tags[0]] == [(1, 0.75), (2, 0.75)]


def test_a_resume_that_begins_with_an_evaluation_keeps_the_step_before_it():
    """A run of eight steps that was killed in the evaluation of step 5."""
    reward, first = "train/rollout/reward_mean", [(step, step / 10) for step in range(1, 8)]
    before = {reward: first[:6], "eval/x": [(0, 0.1), (5, 0.2)], "train/lost": [(6, 1.0)]}
    after = {"eval/x": [(5, 0.3)], reward: first[5:]}
    found = continued(before, after)
    assert found[reward] == first and found["eval/x"] == [(0, 0.1), (5, 0.3)] and "train/lost" not in found


def test_missing_or_empty_log_is_a_clear_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tensorboard_dir"):
        read_curves(tmp_path)
    write_log(tmp_path, {"eval/eval_arithmetic_pass1": [(0, 0.3)]})
    with pytest.raises(FileNotFoundError, match="no training step"):
        read_curves(tmp_path)
