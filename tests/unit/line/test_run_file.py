"""`--config`: flags from files, presets, the file that starts a run again, and the default placement of models."""

import pytest
import yaml
from cases import cases, table
from test_memory_preflight import CONFIGS, line  # noqa: F401  (a fixture)

from openrlhf_shear.cli.train_ppo_ray import build_parser, read
from openrlhf_shear.config.refusal import Findings
from openrlhf_shear.line import spelling
from openrlhf_shear.preflight import layout, rewards


@pytest.fixture(scope="module")
def parser():
    return build_parser()


def test_later_files_win_and_the_line_over_all(tmp_path, parser):
    first, second = tmp_path / "one.yaml", tmp_path / "two.yaml"
    first.write_text(
        "train: {seed: 3, batch_size: 64, colocate_all: true}\nactor.adam.lr: 1.0e-6\nref: {offload: true}\n"
    )
    second.write_text(
        "train.seed: 4\ntrain.colocate_all: false\nactor: {eps_clip_low_high: [0.1, 0.3]}\ndata.max_len:\n"
        "algo.advantage.is_correction_level: off\ndata.label_key: yes\n"
        "logger.wandb.run_name: 2026_11_28\nckpt.output_dir: 007\n"
    )
    words = spelling.expand(["--config", str(first), str(second), "--train.batch_size", "32"], parser, [])
    values = vars(parser.parse_args(words))
    assert (values["train.seed"], values["train.batch_size"], values["train.colocate_all"]) == (4, 32, False)
    assert values["actor.adam.lr"] == 1e-6 and values["actor.eps_clip_low_high"] == [0.1, 0.3] and values["ref.offload"]
    assert (values["algo.advantage.is_correction_level"], values["data.label_key"]) == ("off", "yes")
    assert (values["logger.wandb.run_name"], values["ckpt.output_dir"]) == ("2026_11_28", "007")


WRONG = table("line", "WRONG")


@pytest.mark.parametrize("key", ["bf16", "flash_attn"])
def test_a_switch_of_older_versions_is_true_or_false(tmp_path, parser, key):
    file = tmp_path / "old.yaml"
    for value, found in (("true", [f"--{key}"]), ("false", [])):
        file.write_text(f"{key}: {value}\n")
        assert spelling.expand(["--config", str(file)], parser, []) == found
    file.write_text(f"{key}: off\n")
    refusals = []
    spelling.translate(spelling.expand(["--config", str(file)], parser, []), refusals)
    assert [*map(str, refusals)] == [f"{key} takes no value: got 'off'; use --{key} alone, or true or false in a file"]


@pytest.mark.parametrize("text", WRONG)
def test_a_file_that_is_wrong_is_refused(tmp_path, parser, text):
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    refusals = []
    with Findings(refusals).caught():
        spelling.expand(["--config", str(file)], parser, refusals)
    (refusal,) = map(str, refusals)
    assert f"--config {file}" in refusal and WRONG[text] in refusal


def test_no_file_is_refused_with_the_presets(parser):
    with pytest.raises(
        ValueError,
        match=r"--config gpu9 is not there \(did you mean gpu8\?\); use a YAML file, or one of code, cpu, gpu1",
    ):
        spelling.expand(["--config", "gpu9"], parser, [])


def test_lists_of_older_flags_are_words(tmp_path, parser):
    file = tmp_path / "old.yaml"
    file.write_text("target_modules: [q_proj, v_proj]\neps_clip_low_high: [0.1, 0.3]\nadam_betas: [0.9, 0.95]\n")
    words, _ = spelling.translate(spelling.expand(["--config", str(file)], parser, []), [])
    values = vars(parser.parse_args(words))
    assert values["ds.lora.target_modules"] == ["q_proj", "v_proj"]
    assert values["actor.eps_clip_low_high"] == [0.1, 0.3] and values["actor.adam.betas"] == [0.9, 0.95]


def test_a_runs_file_starts_the_same_run(tmp_path, job, monkeypatch):
    """Values that are quoted, several, false, knobs behind a rule's name and a user's secret."""
    monkeypatch.setattr(rewards, "_ask_servers", lambda *_: ())  # no server is at this address
    words = job(
        "--algo.advantage.estimator shear/window=50 --actor.eps_clip_low_high 0.2 0.28 --train.seed 7 --dry_run"
    )
    words += ["--reward.remote_url", "http://host/x?token=abcdefgh"]
    words += ["--logger.wandb.run_name", "a: b", "--shear.stride=5"]
    first = read(words)
    file = spelling.write(tmp_path / "run", first.run, first.parser)
    kept = yaml.safe_load(file.read_text())
    assert kept["shear"]["stride"] == 5 and "dry_run" not in kept and "abcdefgh" not in file.read_text()
    assert "# Secret, to be given again: reward.remote_url" in file.read_text()
    again = read(["--config", str(file), "--reward.remote_url", "http://host/x?token=abcdefgh"])
    differ = {name for name, value in first.run.flags.items() if again.run.flags[name] != value}
    assert differ == {"dry_run"} and again.run.spec == first.run.spec
    assert read(first.words).run.flags == first.run.flags


def test_a_runs_file_keeps_every_models_gpus(tmp_path, job):
    """8 GPUs are the parser's default, and not those of the actor."""
    words = "--algo.advantage.estimator gae --reward.remote_url reward.py --vllm.num_engines 1 --train.batch_size 128"
    words += " --actor.num_gpus_per_node 4 --ref.num_gpus_per_node 4 --critic.num_gpus_per_node 8"
    first = read(job(words))
    file = spelling.write(tmp_path / "run", first.run, first.parser)
    again = read(["--config", str(file)])
    assert again.run.critic.num_gpus_per_node == 8
    assert {name for name, value in first.run.flags.items() if again.run.flags[name] != value} == set()


PRESETS = [("gpu1", "qwen2.5-1.5b"), ("gpu8", "qwen2.5-7b"), ("gpu2x8", "qwen2.5-14b")]


@pytest.mark.parametrize(("machine_preset", "model"), PRESETS)
def test_a_preset_fits_its_machine(line, machine_preset, model):  # noqa: F811
    """With models of the size that it names, on GPUs of 80 GB; 4096 tokens."""
    left = "no:actor.num_gpus_per_node no:vllm.num_engines no:rollout.batch_size no:rollout.n_samples_per_prompt"
    words = line(model, f"--config {machine_preset} {left} --data.max_len 4096 --rollout.max_new_tokens 3072")
    args = read(words).run.flags
    gpus = {"gpu1": 1, "gpu8": 8, "gpu2x8": 16}[machine_preset]
    assert args["device_memory"] == 80 and args["actor.num_nodes"] * args["actor.num_gpus_per_node"] == gpus


def test_presets_are_flags_and_those_of_tasks_are_the_papers(parser):
    assert spelling.PRESET_NAMES == ["code", "cpu", "gpu1", "gpu2x8", "gpu8", "maths"]
    for task in ("maths", "code"):
        values = vars(parser.parse_args(spelling.expand(["--config", "gpu8", task], parser, [])))
        assert values["shear.window"] == 100 and values["shear.stride"] == 25 and values["shear.epsilon"] == 4.5
        assert values["reward.remote_url"] == {"maths": "math"}.get(task, task)


GPUS = {"actor.num_gpus_per_node": 8, "ref.num_gpus_per_node": 8, "actor.num_nodes": 1, "ref.num_nodes": 1}
OPEN = GPUS | {
    **{"algo.advantage.estimator": "shear", "reward.remote_url": "math", "train.agent_func_path": None},
    **{"train.colocate_all": False, "vllm.num_engines": None, "vllm.tensor_parallel_size": 1},
    **{"vllm.enable_sleep": False, "ds.enable_sleep": False},
}


@pytest.mark.parametrize(*cases("line", "test_models_go_where_the_gpus_are"))
def test_models_go_where_the_gpus_are(given, seen, chosen):
    assert layout.default_placement(OPEN | given, set(given), *seen) == chosen


def test_a_complete_command_does_not_ask_for_the_machine(monkeypatch, job):
    monkeypatch.setattr(layout, "shape", lambda *_: pytest.fail("asked"))
    words = job("--ref.num_gpus_per_node 2")
    assert read(words).words == words


@pytest.mark.parametrize(*cases("line", "test_the_machine_is_looked_at"))
def test_the_machine_is_looked_at(monkeypatch, gpus, device, memory, shape):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(layout.gpu, "visible", lambda: [None] * gpus)
    assert layout.shape(device, memory) == tuple(shape)
