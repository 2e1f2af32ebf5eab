"""A training with failing rewards, benchmarks, dumps and checkpoints; its resume by another rule loses its engine."""

import collections
import json
import math
import re

import psutil
import pytest
from cases import table

from .processes import wait_until

REWARD = table("distributed", "WHOLE_RUN")
ENGINE_CORE = re.compile("VLLM::EngineCore|spawn_main")  # the second where its environment is too small for a title
REASONS = {0: "raised_KeyError", 1: "timeout", 2: "not_finite", 3: "worker_died"}


def last(scalars, name):
    return scalars.get(f"train/ledger/{name}", [0.0])[-1]


def test_every_step_is_whole_and_the_resume_finishes_what_was_begun(tmp_path, train):
    from openrlhf_shear.tasks.arithmetic.problems import write_dataset

    heldout = write_dataset(tmp_path / "heldout.jsonl", 24, seed=1, split="heldout")
    (tmp_path / "reward.py").write_text(REWARD)
    words = ("--reward.remote_url", tmp_path / "reward.py", "--reward.timeout", "2")
    words += ("--reward.cores", "4")  # so that it takes eight calls in a row without an answer to give the file up
    words += ("--eval.suite", heldout, "--eval.k", "2", "--eval.steps", "1", "--eval.temperature", "1.0")
    words += ("--eval.before_train", "--ckpt.save_steps", "1", "--ckpt.load_enable")
    log, scalars = train(*words, "--credit.dump_rollouts_every", "2")
    check_accounts(log, scalars)
    check_dump(tmp_path / "ckpt" / "rollouts", last(scalars, "failed"), scalars["train/rollout/reward_mean"])
    check_best(tmp_path / "ckpt", scalars["eval/suite/average"], scalars["eval/suite/custom-heldout"])
    check_resume(tmp_path, scalars["eval/suite/average"], train, words)


def check_accounts(log, scalars):
    """Each rollout that fails is in the accounts under its reason, and in no mean."""
    assert "gradient check: policy, 2 of 2 micro-batches are in the first optimizer step" in log
    assert len(scalars["train/ledger/dispatched"]) == 2 and last(scalars, "dispatched") == 2 * 8 * 4
    failed = {reason: last(scalars, f"failed_{reason}") for reason in REASONS.values()}
    assert all(count > 0 for count in failed.values()), failed
    every = {name: values for name, values in scalars.items() if "/ledger/failed_" in name}
    assert sum(values[-1] for values in every.values()) == last(scalars, "failed")
    assert last(scalars, "trained") == 64 - last(scalars, "failed") > 0
    assert last(scalars, "filtered") == last(scalars, "waiting") == 0
    assert all(value == value for name, values in scalars.items() for value in values), "a metric is NaN"
    shown = collections.Counter(reason for reason in REASONS.values() for _ in range(log.count(
        f"a reward failed, {reason.replace('_', ' ')}:")))  # fmt: skip
    assert shown == dict.fromkeys(REASONS.values(), 1), "every kind of failure is shown, once"
    assert [value > 0 for value in scalars["train/shear/dump_seconds"]] == [True, True]


def check_dump(folder, failed, reward_means):
    """The rollouts of both steps as they were weighed and trained on: 8 prompts x 4, windows of 16 tokens every 4."""
    from openrlhf_shear.rollouts.record import read_rollouts

    assert sorted(path.name for path in folder.iterdir()) == ["step000001.parquet", "step000002.parquet"]
    steps = [read_rollouts(folder / f"step{step:06d}.parquet") for step in (1, 2)]
    assert [settings["step"] for _, settings in steps] == [1, 2]
    assert all(settings["rule"] == "shear" and settings["window"] == 16 for _, settings in steps)
    assert sum(row.correct is None for rows, _ in steps for row in rows) == failed
    known = [[row.reward for row in rows if row.reward is not None] for rows, _ in steps]
    assert all({*rewards} == {0.0, 1.0} for rewards in known), "both occur: else a placeholder could hide"
    means = [sum(rewards) / len(rewards) for rewards in known]  # a placeholder of 0 would lower them by a third
    assert reward_means == pytest.approx(means, abs=1e-6), "float32"
    for rows, _ in steps:
        assert [(row.group, row.sample) for row in rows] == [(str(g), s) for g in range(8) for s in range(4)]
        assert all(row.first_error is None for row in rows), "another reward file's task is not known"
        groups = [rows[start : start + 4] for start in range(0, 32, 4)]
        assert all(len({row.prompt for row in group}) == 1 for group in groups)
        for group in groups:
            for row in group:
                check_row(row, group)
    assert any(sample >= 0 for rows, _ in steps for row in rows for sample in row.nearest_sample), "a mixed group"


def check_row(row, group):
    opposing = [
        rollout.sample
        for rollout in group
        if None not in (rollout.correct, row.correct) and rollout.correct != row.correct
    ]
    assert len(row.tokens) == len(row.token_ids) == len(row.weights) == len(row.token_advantages)
    assert row.prompt.endswith("=") and all(len(token) == 1 for token in row.tokens[:-1]), "one character is one token"
    advantage = 0.0 if row.advantage is None else row.advantage
    assert (row.advantage is None) == (row.reward is None) == (row.correct is None)
    expected = [advantage * weight for weight in row.weights]
    assert row.token_advantages == pytest.approx(expected, rel=1e-6), "float32"
    assert set(row.nearest_sample) <= (set(opposing) if opposing and row.correct is not None else {-1})
    covering = [  # a token's weight is the largest distance of the spans that cover it
        max(d for start, d in zip(row.span_starts, row.span_distances, strict=True) if start <= t < start + 16)
        for t in range(len(row.tokens))
    ]
    assert row.weights == pytest.approx(covering if opposing else [1.0] * len(row.tokens), rel=1e-6)
    maps = {heatmap.other: heatmap.values for heatmap in row.heatmaps}
    measured = [rollout.sample for rollout in group if rollout.correct is not None and rollout.tokens]
    assert list(maps) == [j for j in measured if j > row.sample and row.correct is not None]
    for k, (j, span, distance) in enumerate(zip(row.nearest_sample, row.nearest_span, row.span_distances, strict=True)):
        if j == -1:
            assert span == -1 and distance == math.inf
            continue
        assert 0 <= span < len(group[j].span_starts)
        later = [group[sample] for sample in opposing if sample > row.sample]
        seen = min((pair for sample in later for pair in between(row, sample, k)), default=math.inf)
        assert seen >= distance - 1e-4, "nothing that a heatmap shows is nearer than the nearest"
        if j > row.sample and k in row.heatmap_spans and span in group[j].heatmap_spans:
            at = group[j].heatmap_spans.index(span)
            assert between(row, group[j], k)[at] == pytest.approx(distance, abs=1e-4)


def between(row, other, k):
    """The distances of span k to the shown spans of another rollout; none where span k is not shown."""
    (values,) = [heatmap.values for heatmap in row.heatmaps if heatmap.other == other.sample]
    width = len(other.heatmap_spans)
    at = row.heatmap_spans.index(k) if k in row.heatmap_spans else None
    return [math.inf] if at is None else values[at * width : (at + 1) * width]


def check_best(kept, scores, of_its_set):
    """The best checkpoint is that of the best score, and each evaluation's results are kept."""
    assert scores == of_its_set and len(scores) == 3 and all(0 < s < 1 for s in scores)
    best = max(range(1, 3), key=lambda step: scores[step])
    assert {path.name for path in (kept / "_actor").glob("best*")} == {f"best_global_step{best}"}
    results = kept / "evaluations" / f"step{best}" / "results.json"
    assert json.loads(results.read_text())["average"]["reward"] == pytest.approx(scores[best])


def line_of(process: psutil.Process) -> str:
    """Its command line; "" if it has ended: workers of rewards come and go."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def check_resume(folder, scores, train, words):
    """As if the run had been killed in its last evaluation; then one step more, with another rule and a killed core."""
    kept, asked = folder / "ckpt", folder / "asked"
    final = kept / "evaluations" / "step2"
    (final / "results.json").unlink()
    log = (final / "samples.jsonl").read_text().splitlines(keepends=True)
    (final / "samples.jsonl").write_text("".join(log[:-1]))
    tracking = kept / "tracking.json"
    tracking.write_text(json.dumps(json.loads(tracking.read_text()) | {"evaluated": 1}))
    words += ("--algo.advantage.estimator", "entropy_adv", "--train.num_episodes", "2")

    def kill_core(process, log_file):
        begun = "completions are there already"
        wait_until(lambda: begun in log_file.read_text() or process.poll() is not None, "engines evaluate", pause=0.05)
        asked.unlink()
        wait_until(lambda: asked.exists() or process.poll() is not None, "a rollout of the step is graded", pause=0.05)
        of_run = psutil.Process(process.pid).children(recursive=True)
        (core,) = [each for each in of_run if ENGINE_CORE.search(line_of(each))]
        core.kill()

    words += ("--ckpt.accept_changes", "data,rule")
    said, scalars = train(*words, problems=8, again=True, meanwhile=kill_core)
    assert "an engine died" in said
    assert last(scalars, "dispatched") == 3 * 32 == last(scalars, "trained") + last(scalars, "failed")
    for name, low, high in (("entropy", 1e-4, 4), ("bonus", 0, 1), ("capped", 0, 1)):
        (value,) = scalars[f"train/entropy_adv/{name}"]
        assert low <= value <= high, name
    later = scalars["eval/suite/average"]
    assert f"{len(log) - 1} completions are there already, 1 to be sampled" in said
    assert len(later) == 2, "step 2 is finished, step 3 follows; the others are not evaluated again"
    assert later[0] == pytest.approx(scores[2], abs=1.5 / len(log))
    best = max((1, 2, 3), key=lambda step: (scores[1], later[0], later[1])[step - 1])
    assert {path.name for path in (kept / "_actor").glob("best*")} == {f"best_global_step{best}"}
    questions = [kept / "evaluations" / step / "questions.jsonl" for step in ("step1", "step2")]
    assert questions[0].samefile(questions[1]), "one copy for all steps"
