"""A run's TensorBoard log becomes its table, summary.json and picture."""

import json
import os

import pytest
from command_lines import refusal

from openrlhf_shear.cli import summarize as cli
from openrlhf_shear.evaluation.run_summary import continued, read_run, summarize

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


def test_summary_of_curves():
    summary = summarize(CURVES)
    assert summary.steps == 8
    assert summary.reward_first == pytest.approx(0.2) and summary.reward_last == pytest.approx(0.5)
    assert (summary.heldout_before, summary.heldout_after, summary.heldout_problems) == (0.375, 0.5, 64)
    assert summary.credit_share == 0.25 and summary.seconds_per_step == 2.0


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
    assert read_run(tmp_path).curves[tags[0]] == [*((s, 0.25) for s in range(1, 5)), *((s, 0.5) for s in range(5, 9))]
    write_log(tmp_path / "empty", {})
    assert read_run(tmp_path).steps == 8
    write("anew", range(1, 3), 0.75, begun=2**33)
    assert read_run(tmp_path).curves[tags[0]] == [(1, 0.75), (2, 0.75)]


def test_a_resume_that_begins_with_an_evaluation_keeps_the_step_before_it():
    """A run of eight steps that was killed in the evaluation of step 5."""
    reward, first = "train/rollout/reward_mean", [(step, step / 10) for step in range(1, 8)]
    before = {reward: first[:6], "eval/x": [(0, 0.1), (5, 0.2)], "train/lost": [(6, 1.0)]}
    after = {"eval/x": [(5, 0.3)], reward: first[5:]}
    found = continued(before, after)
    assert found[reward] == first and found["eval/x"] == [(0, 0.1), (5, 0.3)] and "train/lost" not in found


def test_without_an_evaluation_after_training_there_is_no_result():
    summary = summarize({**CURVES, "eval/eval_arithmetic_pass1": [(0, 0.375)]})
    assert summary.heldout_before == 0.375 and summary.heldout_after is None
    summary = summarize({tag: CURVES[tag] for tag in ("train/rollout/reward_mean", "train/timing/step_total")})
    assert summary.heldout_before is summary.heldout_after is summary.credit_share is None


def test_sets_are_told_apart(tmp_path, capsys):
    """The number of samples in the log is that of all sets."""
    sets = {"eval/eval_gsm8k_pass1": [(0, 0.8), (8, 0.75)], "eval/eval_math_pass1": [(0, 0.3), (8, 0.6)]}
    summary = summarize({tag: points for tag, points in CURVES.items() if "arithmetic" not in tag} | sets)
    assert (summary.heldout_set, summary.heldout_after, summary.heldout_problems) == ("gsm8k", 0.75, None)
    write_log(tmp_path, {**CURVES, **sets})
    cli.main([str(tmp_path)])
    rows = {name.strip(): values for _, name, *values, _ in (line.split("│") for line in printed(capsys))}
    found = {name: [value.strip() for value in rows[f"held-out accuracy, {name}"]] for name in ("gsm8k", "math")}
    assert found == {"gsm8k": ["80.0%", "75.0%"], "math": ["30.0%", "60.0%"]}


def printed(capsys) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.count("│") == 4]


def test_a_log_with_a_nan_is_json_and_one_without_times_is_refused(tmp_path, capsys):
    write_log(tmp_path / "nan", {**CURVES, "train/vllm_kl": [(1, 0.5), (2, float("nan"))]})
    cli.main([str(tmp_path / "nan")])
    written = json.loads((tmp_path / "nan/summary.json").read_text(), parse_constant=pytest.fail)
    assert written["curves"]["train/vllm_kl"] == [[1, 0.5], [2, None]]
    write_log(tmp_path / "untimed", {tag: points for tag, points in CURVES.items() if "timing" not in tag})
    assert "has no train/timing/step_total" in refusal(capsys, [tmp_path / "untimed"], cli.main)


def test_command_writes_json_picture_and_table(tmp_path, capsys):
    write_log(tmp_path / "tensorboard" / "run", CURVES)
    cli.main([str(tmp_path), "--estimator", "shear", "--seed", "3"])
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["seed"] == 3 and written["estimator"] == "shear" and written["heldout_after"] == 0.5
    assert len(written["curves"]["train/rollout/reward_mean"]) == 8
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "37.5%" in printed and "50.0%" in printed


def test_missing_or_empty_log_is_a_clear_error(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match=r"tensorboard_dir"):
        read_run(tmp_path)
    write_log(tmp_path, {"eval/eval_arithmetic_pass1": [(0, 0.3)]})
    assert "no training step" in refusal(capsys, [tmp_path], cli.main)
