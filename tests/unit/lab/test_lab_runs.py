"""Runs in files, one of them trained in a worker process; and the policy that they start from."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from cases import cases, table
from lab_cases import write_run

from openrlhf_shear.lab import runs
from openrlhf_shear.lab.policy import fingerprint, start_policy
from openrlhf_shear.lab.runs import finished, jobs, run_all
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR

SETTINGS = LabSettings(prompts=1, samples_per_prompt=2, steps=2, eval_problems=2, precision="float32")
FAILING = table("lab", "FAILING")


def wanted(rules, seeds, output, settings=SETTINGS, identity="a policy"):
    return jobs(settings, parse_rules(rules), seeds, POLICY_DIR, identity, output)


def no_process(*args, **kwargs):
    raise AssertionError("no process was to be started")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two jobs in one worker, of which the second fails: the jobs, and the error."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "lab_failing_rule.py").write_text(FAILING)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        both = wanted("uniform,lab_failing_rule:Fails", [7], folder / "output")
        with pytest.raises(RuntimeError) as caught:
            run_all(both, workers=1)
    return both, caught.value


def test_a_failed_run_is_named_and_finished_runs_stay(trained):
    (uniform, failing), error = trained
    assert str(error).startswith("lab_failing_rule:Fails, seed 7: ") and "no credit today" in str(error)
    assert uniform.path.is_file() and not failing.path.exists()
    written = json.loads(uniform.path.read_text())
    assert written["made"].keys() == {"commit", "command", "machine", "kind", "versions"}
    assert LabSettings(**written["settings"]) == SETTINGS and written["start"] == fingerprint(POLICY_DIR)
    files = [path for path in uniform.path.parents[2].rglob("*") if path.is_file()]
    assert files == [uniform.path], "nothing half-written stays"


def test_what_is_there_is_read_and_not_trained_again(trained, monkeypatch):
    (uniform, _), _ = trained
    monkeypatch.setattr(runs, "ProcessPoolExecutor", no_process)
    before = uniform.path.stat().st_mtime_ns
    (run,) = run_all([uniform], workers=1)
    assert (run.rule, run.seed, len(run.accuracy)) == ("uniform", 7, 2) and 8 * run.final in range(9)
    assert [len(values) for values in run.metrics.values()] == [2] * len(run.metrics)
    made = json.loads(uniform.path.read_text())["made"]
    assert made["versions"]["torch"] and made["machine"] and made["command"].startswith("python") and "commit" in made
    assert run.made == made
    assert finished([uniform]) == [run] and uniform.path.stat().st_mtime_ns == before


def test_only_missing_runs_are_trained(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(runs, "_train", lambda missing, workers: asked.extend(missing) or [*map(write_run, missing)])
    three = wanted("uniform,shear", range(3), tmp_path)
    for job in three[:3]:
        write_run(job, 0.25)
    found = run_all(three, workers=2)
    assert asked == three[3:]
    assert [(run.rule, run.seed) for run in found] == [(job.variant.name, job.seed) for job in three]
    assert [run.final for run in found] == [0.25] * 3 + [0.5] * 3
    assert [run.seed for run in run_all(wanted("uniform,shear", range(2), tmp_path), 2)] == [0, 0, 1, 1]
    assert asked == three[3:], "fewer seeds train nothing"


ENDLESS = """
import pathlib, test_lab_runs
from dataclasses import replace

if __name__ == "__main__":
    settings = replace(test_lab_runs.SETTINGS, steps=20_000)  # hours of them
    test_lab_runs.run_all(test_lab_runs.wanted("uniform", [0], pathlib.Path("output"), settings), workers=1)
"""


def test_workers_end_when_the_lab_is_killed(tmp_path):
    (tmp_path / "endless.py").write_text(ENDLESS)
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    with open(tmp_path / "said", "w") as said:
        lab = subprocess.Popen(
            [sys.executable, "endless.py"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}, stderr=said
        )
    try:
        while not re.search(r" [1-9]\d*/20000 ", (tmp_path / "said").read_text()):  # its worker trains
            assert lab.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.1)
        processes = psutil.Process(lab.pid).children(recursive=True)
    finally:
        lab.kill()
        lab.wait()
    assert processes and not psutil.wait_procs(processes, timeout=60)[1]


def test_jobs_go_seed_after_seed_each_with_a_file_of_its_own(tmp_path):
    names = ["uniform", "shear", "shear/on_incorrect/matched", "shear/window=4"]
    found = wanted(",".join(names), [0, 1], tmp_path)
    assert [(job.seed, job.variant.name) for job in found] == [(seed, name) for seed in (0, 1) for name in names]
    assert len({job.path for job in found}) == 8 and len({job.path.parents[1] for job in found}) == 1
    assert all(job.path.is_relative_to(tmp_path / "runs") and job.start == POLICY_DIR for job in found)
    assert {job.path.name for job in found} == {"seed000.json", "seed001.json"}


@pytest.mark.parametrize(*cases("lab", "test_other_settings_are_other_folders"))
def test_other_settings_are_other_folders(tmp_path, rule, changes, same):
    (first,), (second,) = (wanted(rule, [0], tmp_path, replace(SETTINGS, **of)) for of in ({}, changes))
    assert (first.path == second.path) == same
    (other,) = wanted(rule, [0], tmp_path, identity="another policy")
    assert first.path != other.path


def test_a_setting_at_its_default_is_in_no_identity():
    assert LabSettings().of_a_run() == {}, "so that a new setting does not move the runs that are there"
    changed = LabSettings(window=4, steps=9, task="bookkeeping")
    assert changed.of_a_run() == {"task": "bookkeeping", "steps": 9} and LabSettings(**changed.changed()) == changed


def test_two_names_of_a_rule_are_trained_once_and_both_read(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(runs, "_train", lambda missing, workers: asked.extend(missing) or [*map(write_run, missing)])
    both = wanted("shear,shear/window=16/stride=4", range(2), tmp_path)
    assert [run.rule for run in run_all(both, 1)] == ["shear", "shear/window=16/stride=4"] * 2
    assert len(asked) == 2 and sorted(run.rule for run in finished(both)) == sorted(job.variant.name for job in both)


def test_seeds_that_only_tuned_are_not_among_the_finished(tmp_path):
    for job in wanted("shear", (0, 300, 899, 900, 922), tmp_path):
        write_run(job)
    assert [run.seed for run in finished(wanted("shear", [0], tmp_path))] == [0, 300, 899]
    assert [run.seed for run in finished(wanted("shear", [901], tmp_path))] == [900, 922]


def test_finished_reads_those_that_are_there_under_this_call_s_names(tmp_path):
    found = wanted("shear/window=16,uniform", range(3), tmp_path)
    write_run(found[4])
    found[1].path.parent.mkdir(parents=True, exist_ok=True)
    found[1].path.with_name(found[1].path.name + ".123").write_text("{")  # of a worker that was killed
    (run,) = finished(found)
    assert (run.rule, run.seed, run.final) == ("shear/window=16", 2, 0.5)


@pytest.mark.parametrize(*cases("lab", "test_a_file_that_is_no_run_is_named"))
def test_a_file_that_is_no_run_is_named(tmp_path, text):
    (job,) = wanted("uniform", [0], tmp_path)
    write_run(job)
    assert run_all([job], 1)
    job.path.write_text(text)
    for read in (lambda: run_all([job], 1), lambda: finished([job])):
        with pytest.raises(ValueError, match=r"is no run of the lab \(.+\); delete it and start again") as caught:
            read()
        assert str(job.path) in str(caught.value)


def start(**settings):
    return start_policy(replace(SETTINGS, **settings))


def test_the_shipped_policy_is_of_one_task():
    assert start() == POLICY_DIR
    with pytest.raises(ValueError, match=r"the shipped policy knows 7 operations: got 9; use --start and a folder"):
        start(operations=9)


def test_a_folder_without_a_policy_is_refused(tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(ValueError, match=rf"lab\.start: no policy in {folder}; use shipped, or a folder from"):
            start(start=str(folder))


def test_a_folder_of_the_user_s_is_taken_as_it_is(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"others")
    assert start(start=str(tmp_path), operations=3) == tmp_path
    assert fingerprint(tmp_path) != fingerprint(POLICY_DIR)
    (tmp_path / "model.safetensors").write_bytes((POLICY_DIR / "model.safetensors").read_bytes())
    assert fingerprint(tmp_path) == fingerprint(POLICY_DIR)
