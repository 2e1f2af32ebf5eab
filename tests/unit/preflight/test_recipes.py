"""The paper's recipes: every command of the grid is parsed and has the paper's settings."""

import json
import os
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import cases, table

from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.config import ShearConfig
from openrlhf_shear.line.run import ESTIMATOR
from openrlhf_shear.preflight import checks, models, rewards
from openrlhf_shear.preflight.rows import Prompts

SCRIPTS = Path(__file__).parents[3] / "examples" / "scripts"
SWEEPS = ("main", "groups", "distance", "normalize", "pool", "span", "tail", "epsilon")
MODELS = table("preflight", "MODELS")
# Appendix "Implementation Details" of the paper, and its section 5.1.
SETTINGS = table("preflight", "SETTINGS")

LABELS = {"code": json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})}  # the others are numbers


def script(name: str, *words: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run([SCRIPTS / "paper" / name, *words], env=environment, capture_output=True, text=True)


def grid(sweep: str, **variables: str) -> list[str]:
    listed = script("grid.sh", sweep, **variables)
    assert listed.returncode == 0, listed.stderr
    return listed.stdout.splitlines()


def command(*words: str, **variables: str) -> list[str]:
    """The words after `python -m openrlhf_shear.cli.train_ppo_ray` that run.sh would start."""
    printed = script("run.sh", *words, "--dry-run", **variables)
    assert printed.returncode == 0, printed.stderr
    python, m, module, *flags = shlex.split(printed.stdout)
    assert (python, m, module) == ("python", "-m", "openrlhf_shear.cli.train_ppo_ray")
    return flags


@pytest.fixture
def parsed(tmp_path, monkeypatch):
    """A function: words of run.sh -> its flags, parsed and checked, less what asks the hub or looks for a jail."""
    for task in ("math", "code"):
        for name in (task, f"{task}_eval"):
            (tmp_path / f"{name}.jsonl").write_text(
                json.dumps({"prompt": [{"role": "user", "content": "1?"}], "label": LABELS.get(name, "1")}) + "\n"
            )
    spoken = SimpleNamespace(
        bos_token=None, apply_chat_template=lambda chats, **how: [chat[0]["content"] for chat in chats]
    )
    monkeypatch.setattr(Prompts, "_tokenizer", spoken)
    monkeypatch.setattr(models, "model_config", lambda *_: None)
    monkeypatch.setattr(
        checks, "CHECKS", [check for check in checks.CHECKS if check not in (rewards.code, rewards.suite)]
    )
    monkeypatch.setattr(checks, "OF_MODELS", [])

    def build(*words: str, **variables: str) -> dict:
        values = vars(parse(command(*words, **{"DATA": str(tmp_path)} | variables)))
        return {name: value for name, value in values.items() if name != "fingerprint"}  # made of the others

    return build


def test_the_grid_is_the_papers():
    runs = [line.split() for line in grid("main", SEEDS="0")]
    assert len(runs) == 5 * 3 + 2 * 3
    assert {tuple(run[1:3]) for run in runs} == {
        *((model, "math") for model in ("qwen2.5-math-7b", "llama3.1-8b", "qwen2.5-14b")),
        *((model, "code") for model in ("qwen2.5-coder-7b", "llama3.1-8b", "qwen2.5-14b")),
    }
    assert [sum(run[0] == method for run in runs) for method in ("grpo", "shear", "entropy_adv")] == [6, 6, 3]
    assert {run[2] for run in runs if run[0] in ("prm_reshape", "pure")} == {"math"}
    for sweep in SWEEPS:
        lines = grid(sweep)
        assert len(set(lines)) == len(lines)
        assert [line.split(" --seed ")[1] for line in lines] == ["0", "1", "2"] * (len(lines) // 3)


@pytest.mark.parametrize("sweep", ["main", "groups"])
def test_a_run_has_the_papers_settings(parsed, sweep, capsys):
    for line in grid(sweep, SEEDS="2"):
        assert_papers_settings(parsed, line)
    assert "no effect" not in capsys.readouterr().err


def assert_papers_settings(parsed, line: str) -> None:
    method, model, task, *_ = line.split()
    args = parsed(*line.split())
    assert {name: args[name] for name in SETTINGS} == SETTINGS
    assert args["actor.model_name_or_path"] == MODELS[model]
    assert args["reward.remote_url"] == task
    assert args["rollout.n_samples_per_prompt"] == (16 if "--group 16" in line else 8)
    assert args["rollout.batch_size"] * args["rollout.n_samples_per_prompt"] == 512
    assert args["train.seed"] == 2
    assert args["data.max_len"] == 4096  # all that Qwen2.5-Math has
    assert args["eval.suite"] == task and args["eval.k"] == args["eval.limit"] == 0  # each benchmark's own k, all of it
    assert not args["actor.entropy_coef"]  # entropy_adv sets 0, which only measures it
    assert args[ESTIMATOR] == "group_norm"
    assert (args["credit"].estimator if args["credit"] else "grpo") == method
    if method in ("prm_reshape", "pure"):
        prm = args["credit"].prm
        assert (prm.model_name_or_path, prm.max_len) == ("Qwen/Qwen2.5-Math-PRM-7B", 4096)
        assert prm.num_nodes * prm.num_gpus_per_node == args["actor.num_nodes"] * args["actor.num_gpus_per_node"]
    if method == "pure":
        assert (args["credit"].config.temperature, args["credit"].config.width) == (0.1, 3072)
    if method == "shear":
        assert args["credit"].config == ShearConfig(window=100, stride=25, epsilon=4.5)


@pytest.mark.parametrize("sweep", SWEEPS[2:])
def test_an_ablation_changes_its_knobs_only(parsed, sweep):
    paper = ShearConfig(window=100, stride=25, epsilon=4.5)
    plain = parsed("shear", "qwen2.5-math-7b", "math")
    folders = {"ckpt.output_dir", "ckpt.path", "logger.tensorboard_dir", "logger.wandb.run_name"}
    seen = [plain["credit"].config]
    knobs = ("window", "stride") if sweep == "span" else (sweep,)
    for line in grid(sweep, SEEDS="0"):
        args = parsed(*line.split())
        assert {name for name in plain if plain[name] != args[name]} == {"credit", *folders}
        config = args["credit"].config
        assert all(getattr(config, name) == value for name, value in vars(paper).items() if name not in knobs)
        seen.append(config)
    assert len(set(seen)) == len(seen)  # each another configuration, and none the paper's own


def test_the_machine_and_the_batches_come_from_the_environment(parsed):
    args = parsed("shear", "qwen2.5-14b", "code", NODES="2", GPUS="4", BATCH="4096", MINI_BATCH="256", EPISODES="3")
    assert (args["actor.num_nodes"], args["actor.num_gpus_per_node"], args["vllm.num_engines"]) == (2, 4, 8)
    assert (args["rollout.batch_size"], args["train.batch_size"], args["train.num_episodes"]) == (512, 256, 3)


def test_a_users_flag_wins_and_names_the_run():
    flags = command("shear", "qwen2.5-math-7b", "math", "--smoke", "--actor.model_name_or_path", "org/my model")
    assert flags[-2:] == ["--actor.model_name_or_path", "org/my model"]
    folder = flags[flags.index("--ckpt.output_dir") + 1]
    assert folder == "runs/shear-qwen2.5-math-7b-math-g8-seed0-smoke-actor.model_name_or_path-org_my model/checkpoint"


def test_different_flags_are_different_runs():
    lines = (
        *(["--actor.adam.lr=1.5e-6"], ["--actor.adam.lr=2.5e-6"], ["--shear.epsilon=0.5"], ["--shear.epsilon=1.5"]),
        *(["--rollout.temperature", "0.6"], ["--eval.temperature", "0.6"], ["--rollout.top_p=0.6"]),
    )
    found = [command("shear", "qwen2.5-math-7b", "math", *words) for words in lines]
    assert len({flags[flags.index("--ckpt.path") + 1] for flags in found}) == len(lines)


@pytest.mark.parametrize(*cases("preflight", "test_what_is_not_in_the_paper_is_refused"))
def test_what_is_not_in_the_paper_is_refused(words, said):
    refused = script("run.sh", *words.split(), DATA="nowhere")
    assert refused.returncode == 2
    assert said in refused.stderr
    assert refused.stdout == ""
