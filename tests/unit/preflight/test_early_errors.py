"""What cannot work is refused before Ray starts, as far as it takes more than a line to see (test_refusals.py)."""

import argparse
import ast
import json
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path

import pytest
from cases import cases
from command_lines import HEAVY, refusal, run_fresh, write_checkpoint
from conftest import TRIED

from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.data import hub, training_rows
from openrlhf_shear.preflight import rewards, rows
from openrlhf_shear.rewards import function_workers
from openrlhf_shear.rewards.function_workers import FunctionWorkers, try_file
from openrlhf_shear.rewards.jail import JailError
from openrlhf_shear.train import upstream

ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]


def write_rows(path: str, rows: list) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def upstream_main(args: argparse.Namespace) -> None:
    """What OpenRLHF's main does between parsing the line and training, i.e. before it starts Ray."""
    name = find_spec(upstream.MAIN).origin
    source = Path(name).read_text(encoding="utf-8")
    main = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    lines = [ast.unparse(node) for node in main.body]
    start = next(number for number, line in enumerate(lines) if "hierarchize(" in line)
    assert lines[-1] == "train(args)"
    config = run_path(str(Path(name).parents[1] / "utils" / "config.py"))
    exec("\n".join(lines[start:-1]), {"args": args, "hierarchize": config["hierarchize"]})


@pytest.mark.parametrize(*cases("preflight", "test_what_openrlhf_refuses_before_ray_starts_is_left_to_it"))
def test_what_openrlhf_refuses_before_ray_starts_is_left_to_it(job, changes, said):
    args = parse(job(f"GRPO {changes}"))
    with pytest.raises(AssertionError) as raised:
        upstream_main(args)
    assert said in str(raised.value)


def test_openrlhf_lets_images_with_dynamic_batches_pass(job):
    args = parse(job("GRPO --train.dynamic_batch_enable"))
    vars(args)["data.max_images_per_prompt"] = 1
    upstream_main(args)  # raises where it refuses
    assert vars(args)["train.dynamic_batch_enable"]


@pytest.mark.parametrize(
    ("ranks", "pictures", "refused"),
    [(2, ["a.png", None, [None]], True), (1, ["a.png", None, []], False), (2, ["a.png", ["b.png"], ["c.png"]], False)],
)
def test_ranks_have_to_see_together(job, capsys, ranks, pictures, refused):
    write_rows("mine.jsonl", [{"question": "<image>", "answer": "2", "images": each} for each in pictures])
    changes = f"--data.max_images_per_prompt 1 --data.prompt_dataset mine.jsonl --actor.num_gpus_per_node {ranks}"
    if refused:
        expected = "data.image_key gives no picture in 2 of 3 rows of mine.jsonl: line 2; line 3"
        assert expected in refusal(capsys, job(f"GRPO {changes}"))
    else:
        assert parse(job(f"GRPO {changes}"))


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(*cases("preflight", "test_not_refused"))
def test_not_refused(job, capsys, changes):
    assert parse(job(changes)).device == "auto"
    assert "no effect" not in capsys.readouterr().err


@pytest.mark.parametrize("config", [{"architectures": ["Qwen2ForCausalLM"]}, {"architectures": None}, "{", [1]])
def test_a_config_of_no_process_reward_model_is_refused_in_a_line_that_names_the_flag(job, capsys, config):
    Path("other/config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    assert "prm.model_name_or_path " in refusal(capsys, job("RESHAPE other"))


def test_a_process_reward_model_on_the_hub_is_looked_at_too(prm, job, capsys, monkeypatch):
    import huggingface_hub

    found = {"some/prm": str(prm / "config.json"), "some/policy": "model/config.json"}
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: found.get(name, "config.json"))
    assert parse(job("RESHAPE some/prm")).credit.prm.model_name_or_path == "some/prm"
    assert "says None, not Qwen2For" in refusal(capsys, job("RESHAPE some/policy"))
    told = refusal(capsys, job("RESHAPE some/prm --prm.max_len 5000"))
    assert "the model's 4096 positions: got 5000" in told


@pytest.mark.parametrize("reward", ["math", "code"])
def test_built_in_rewards_are_refused_without_labels_and_without_a_jail(job, capsys, monkeypatch, reward):
    def no_jail(allow_unsandboxed=False):
        if not allow_unsandboxed:
            raise JailError("no jail works here: bubblewrap is not installed")

    monkeypatch.setattr("openrlhf_shear.preflight.rewards.find_jail", no_jail)
    tests = json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})
    write_rows("prompts.jsonl", [{"question": "1 + 1?", "answer": tests if reward == "code" else "2"}])
    told = refusal(capsys, job(f"--reward.remote_url {reward} no:data.label_key"))
    assert f"data.label_key is needed: --reward.remote_url {reward}" in told
    told = refusal(capsys, job(f"--reward.remote_url {reward}"))
    assert f"reward.remote_url {reward}: no jail works here" in told
    assert parse(job(f"--reward.remote_url {reward} --reward.allow_unsandboxed"))


@pytest.mark.parametrize(*cases("preflight", "test_a_reward_file_that_works_is_called_once_with_the_first_row"))
def test_a_reward_file_that_works_is_called_once_with_the_first_row(job, capsys, source, warned):
    Path("mine.py").write_bytes(source.encode("latin-1"))
    assert vars(parse(job("--reward.remote_url mine.py")))["reward.remote_url"] == "mine.py"
    told = capsys.readouterr().err
    assert warned in told if warned else "mine.py" not in told
    assert not list(Path().rglob("*.pyc"))


FORMATTED = """def reward_func(queries, prompts, labels):
    right = float(queries[0].endswith(labels[0]))
    return {"rewards": right + 0.5, "extra_logs": {"accuracy": right}}
"""


@pytest.mark.parametrize(*cases("preflight", "test_a_threshold_that_both_test_responses_pass_is_questioned"))
def test_a_threshold_that_both_test_responses_pass_is_questioned(job, capsys, words, warned):
    """An accuracy of weight 1 beside a format reward of 0.5 that every response earns."""
    Path("mine.py").write_text(FORMATTED)
    assert parse(job(f"--reward.remote_url mine.py {words}"))
    told = capsys.readouterr().err
    assert warned in told if warned else "correct_threshold" not in told
    assert refusal(capsys, job("--reward.remote_url mine.py --credit.correct_reward acc")).endswith(
        "is no entry of the extra_logs of mine.py, which have accuracy: got 'acc'; use one of these, or leave it out"
    )


@pytest.mark.parametrize(
    ("source", "says"),
    [("import time\ntime.sleep(60)\n", "to import; a model that"), ("", "timeout (reward_func took longer than 1 s)")],
)
def test_a_reward_file_that_hangs(job, capsys, monkeypatch, source, says):
    monkeypatch.setattr(rewards, "TRY_SECONDS", 1.0)
    if not source:  # the start of a process may take longer
        greet = function_workers._Process.greet
        monkeypatch.setattr(function_workers._Process, "greet", lambda process, _: greet(process, 60.0))
    Path("mine.py").write_text(f"{source}import time\ndef reward_func(q, p, l): time.sleep(60)\n")
    told = refusal(capsys, job("--reward.remote_url mine.py"))
    assert says in told and told.endswith("; --reward.timeout SECONDS allows more")


@pytest.mark.parametrize(*cases("preflight", "test_what_is_questioned_of_rows"))
def test_what_is_questioned_of_rows(job, capsys, rows, words, warned):
    write_rows("mine.jsonl", rows)
    parse(job(f"--actor.model_name_or_path POLICY --data.max_len 512 --data.prompt_dataset mine.jsonl {words}"))
    told = capsys.readouterr().err
    assert warned in told if warned else "[Warning]" not in told


TEMPLATE = "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
TALK = [[{"role": role, "content": "1 + 1?"}] for role in ("user", "tool")]


@pytest.mark.parametrize(
    ("prompts", "said"), [(["1 + 1?"], None), (TALK[:1], None), (TALK, "fails on line 2 of the prompts (no tools)")]
)
def test_a_chat_template_sees_every_message(job, capsys, prompts, said):
    line = "--data.prompt_dataset mine.jsonl --data.apply_chat_template --reward.remote_url mine.py"
    line = job(line)
    Path("model/chat_template.jinja").write_text(TEMPLATE + "<{{ m['content'] }}>{% endfor %}")
    Path("mine.py").write_text("def reward_func(q, p, l): return {'rewards': float(p == ['<1 + 1?>'])}\n")
    write_rows("mine.jsonl", [{"question": prompt, "answer": "2"} for prompt in prompts])
    if said:
        assert said in refusal(capsys, line)
    else:
        parse(line)
        assert "mine.py gives 1 to" in capsys.readouterr().err, "the prompt as the policy reads it"


def test_rows_are_read_once_and_all_of_them(job, monkeypatch):
    read = []
    monkeypatch.setattr(
        rows, "training_rows", lambda name, *_, **hub: read.append(name) or training_rows.training_rows(name, *_, **hub)
    )
    parse(job("--eval.dataset prompts.jsonl --eval.before_train"))
    assert read == ["prompts.jsonl"]
    read.clear()
    write_checkpoint(Path("ckpt/_actor"), "global_step1")
    parse(job("--ckpt.path ckpt --ckpt.load_enable"))
    assert read == ["prompts.jsonl"], "also by a run that compares its rows with a checkpoint's"


def test_a_model_that_cannot_be_reached(job, capsys, monkeypatch):
    import huggingface_hub

    def unreachable(name, file):
        raise FileNotFoundError("no connection\nand more")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    monkeypatch.setattr(hub, "unreachable", str)
    told = refusal(capsys, job("--actor.model_name_or_path no/such-model"))
    assert (
        "neither a folder here nor a model that can be reached on the hub (no connection): got 'no/such-model'" in told
    )
    parse(job("--actor.model_name_or_path no/such-model --use_ms"))


def test_a_model_in_the_cache_or_on_the_hub_is_fine(job, monkeypatch):
    import huggingface_hub

    asked = []
    monkeypatch.setattr(hub, "unreachable", str)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, file: asked.append((name, file)))
    parse(job("--actor.model_name_or_path some/model"))
    assert set(asked) == {("some/model", "config.json")}  # once it is there the cache answers
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", None)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: "config.json")
    assert vars(parse(job("--actor.model_name_or_path some/model")))["actor.model_name_or_path"] == "some/model"


@pytest.mark.parametrize("options", [[], ["-O"]])
def test_errors_come_before_ray_and_under_optimisation_too(job, options):
    run, loaded = run_fresh("train_ppo_ray", job("--data.label_key gold"), HEAVY[:-1], options=options)
    assert (run.returncode, loaded) == (2, [])
    assert "data.label_key is not a column of prompts.jsonl" in run.stderr


def test_a_policy_without_a_tokenizer(job, capsys):
    line = job("--actor.model_name_or_path other")
    Path("other/tokenizer.json").unlink()
    assert "names a folder without a tokenizer: got 'other'" in refusal(capsys, line)


def test_a_fresh_start_among_the_checkpoints_of_another_run(job, capsys):
    write_checkpoint(Path("ckpt/_actor"), "global_step8")
    line = "--ckpt.path ckpt --ckpt.save_steps 4"
    told = refusal(capsys, job(line))
    assert "ckpt.path has checkpoints of another run (global_step8)" in told and "--ckpt.load_enable" in told
    parse(job(f"{line} --ckpt.load_enable"))
    parse(job("--ckpt.path ckpt"))  # it will write none


def test_the_stand_in_for_the_reward_s_process_says_what_the_process_says(job):
    requests = [("b?", "b", "c"), ("bc", "b", "c")]
    with FunctionWorkers("reward.py", 60.0, 1) as workers:
        assert try_file("reward.py", 60.0, requests) == TRIED == [workers.grade(*each) for each in requests]
