"""Smoke runs of two recipes: GRPO on programs, and the recipe that uses most of this package."""

import re
import shlex
import shutil

import pytest

from .conftest import scalars_of
from .processes import ROOT, environment

RUN = ROOT / "examples" / "scripts" / "paper" / "run.sh"
METRICS = {"pure/worst_step": (0, 1), "prm/steps_per_rollout": (4, 12), "prm/truncated_rollouts": (0, 0)}


def smoked(jobs, tmp_path, method, model, task):
    """The folder and the scalars of a run with two steps, held-out scores before and after, a report, a checkpoint."""
    words = (method, model, task, "--smoke", "--seed", "1", "--group", "4")
    done = jobs.run(RUN, *words, env=environment(RUNS=str(tmp_path), RAY_ADDRESS="local"))
    assert done.code == 0
    folder = tmp_path / f"{method}-{model}-{task}-g4-seed1-smoke"
    shown = done.log.splitlines()
    steps = [line for line in shown if re.fullmatch(r"[12]/2  reward .* s  ETA [\d:-]+", line)]
    assert len(shown) < 120 and len(steps) == 2
    trained = next(line for line in shown if line.startswith("rollouts  "))
    assert trained.startswith(f"rollouts  {2 * 8} trained of {2 * 8} sampled")
    assert "Global step 2" in (folder / "logs" / "train.log").read_text()
    scalars = scalars_of(folder / "tensorboard")
    assert len(scalars["train/rollout/reward_mean"]) == len(scalars["eval/suite/average"]) == 2
    assert (folder / "checkpoint" / "config.json").is_file() and (folder / "report" / "index.html").is_file()
    return folder, scalars


@pytest.mark.long
def test_grpo_on_code_smokes(jobs, tmp_path):
    from openrlhf_shear.rewards.jail import JailError, find_jail

    try:
        find_jail()
    except JailError as error:
        pytest.skip(f"no jail: {error}")
    _, scalars = smoked(jobs, tmp_path, "grpo", "qwen2.5-coder-7b", "code")
    assert not [tag for tag in scalars if tag.endswith("/credit_share")]


@pytest.mark.long
def test_pure_on_math_smokes_and_the_others_lines_are_accepted(jobs, tmp_path, monkeypatch):
    """The training commands of the other methods' smoke runs, checked against the data and models of this run."""
    from openrlhf_shear.cli.train_ppo_ray import parse

    folder, scalars = smoked(jobs, tmp_path, "pure", "qwen2.5-math-7b", "math")
    assert len(scalars["train/pure/credit_share"]) == 2
    for name, (low, high) in METRICS.items():
        values = scalars[f"train/{name}"]
        assert len(values) == 2 and all(low <= value <= high for value in values), (name, values)

    monkeypatch.chdir(ROOT)
    lines = [("shear", "qwen2.5-math-7b"), ("entropy_adv", "llama3.1-8b"), ("prm_reshape", "qwen2.5-14b")]
    for method, model in lines:
        shutil.copytree(folder / "smoke", tmp_path / f"{method}-{model}-math-g4-seed1-smoke" / "smoke")
        words = (method, model, "math", "--smoke", "--dry-run", "--seed", "1", "--group", "4")
        printed = jobs.run(RUN, *words, env=environment(RUNS=str(tmp_path)))
        flags = parse(shlex.split(printed.log)[3:])
        assert flags.credit.estimator == method
        assert (flags.credit.knobs().get("window") == 16) == (method == "shear")
