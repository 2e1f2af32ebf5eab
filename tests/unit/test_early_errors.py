"""What cannot work is refused before Ray starts, in a line that says what is wrong, what it got and what to use."""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path
from runpy import run_path

import pytest
from command_lines import HEAVY, check_refused, refusal, run_fresh, table

from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.fork import upstream
from openrlhf_shear.rewards.jail import JailError


def write_rows(path: str, rows: list) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_line_itself_is_fine(job):
    assert vars(parse(job()))["data.input_key"] == "question"


REFUSED = """
# groups, and what SHEAR does not do
--rollout.n_samples_per_prompt 1
    rollout.n_samples_per_prompt must be greater than 1 | shear | got 1
--ds.ring_attn_size 2
    ds.ring_attn_size means ring attention | shear does not support | got 2; use 1
--ds.tensor_parallel_size 2
    ds.tensor_parallel_size means a tensor parallel actor | not support
--train.async_enable
    train.async_enable means asynchronous training | not support
--data.max_images_per_prompt 1
    data.max_images_per_prompt means images | not support
--shear.dump_rollouts_every -1
    shear.dump_rollouts_every must be at least 0 | got -1 | 0 for never
--algo.advantage.estimator group_norm --shear.dump_rollouts_every 5
    dump_rollouts_every needs a credit rule, which group_norm is not | got 5 | estimator uniform
--algo.advantage.estimator entropy_adv --shear.dump_rollouts_every 5
    dump_rollouts_every has nothing to show of estimator entropy_adv | only in the update | use 0
# counts and modes
--vllm.num_engines -1
    vllm.num_engines must be at least 1 | got -1
--train.micro_batch_size 0
    train.micro_batch_size must be at least 1 | got 0
--eval.suite maths --eval.steps 5
    eval.suite: no benchmark is called 'maths' (did you mean math?)
--eval.suite gsm8k --eval.data_dir . --eval.steps 5
    eval.suite: GSM8K is not in . | tried gsm8k/test.jsonl
--eval.suite prompts.jsonl
    eval.steps must be at least 1 for --eval.suite: got -1
--eval.suite prompts.jsonl --eval.k -1 --eval.steps 5
    eval.k must be at least 0: got -1
--eval.suite nowhere.jsonl --eval.steps 5
    eval.suite: nowhere.jsonl does not exist
--algo.advantage.estimator group_norm --eval.suite gsm8k --train.async_enable
    eval.suite does not go with --train.async_enable
--actor.dual_clip 0.5
    actor.dual_clip must be greater than 1: got 0.5
--algo.dynamic_filtering_enable --algo.dynamic_filtering_range 1 0
    algo.dynamic_filtering_range | LOW < HIGH | got (1.0, 0.0)
--eval.before_train
    eval.before_train needs something to evaluate on | --eval.dataset or --eval.suite too
--eval.before_train --eval.dataset prompts.jsonl --train.async_enable --algo.advantage.estimator group_norm
    eval.before_train does not go with --train.async_enable
--algo.advantage.estimator group_norm --data.max_images_per_prompt 1 --train.dynamic_batch_enable
    train.dynamic_batch_enable packs samples, which does not go with images
# importance-sampling correction, as OpenRLHF's PolicyLoss asserts
--algo.advantage.is_correction_level seq --algo.advantage.is_correction_mode clip
    is_correction_mode clip clamps token ratios | level seq
--algo.advantage.is_correction_level seq --algo.advantage.is_correction_gating tv
    is_correction_threshold is an upper bound only for gating tv | a single HIGH
# rewards
--reward.remote_url nowhere.py
    reward.remote_url names a file that is not there | 'nowhere.py'
--reward.remote_url prompts.jsonl
    reward.remote_url is no reward | math, code, the path of a .py file
--reward.remote_url math,code
    reward.remote_url is no reward | 'math,code'
--reward.remote_url http://one:5000,reward.py
    reward.remote_url names a file that is not there
--reward.remote_url empty.py
    reward.remote_url names a file without reward_func | 'empty.py'
--reward.remote_url http://one:5000,http://shear:tokentoken@:5001
    reward.remote_url has no address as its server 2: got ':5001'
--reward.remote_url http://one:port
    reward.remote_url has no address as its server 1: got 'http://one:port'
--reward.remote_url code --algo.advantage.estimator group_norm --train.async_enable
    reward.remote_url does not go with --train.async_enable | cli.serve_reward
--reward.timeout -1
    reward.timeout must be at least 0
--reward.timeout nan
    reward.timeout must be at least 0: got nan
--reward.timeout inf
    reward.timeout must be at least 0: got inf
--reward.memory_mb 1
    reward.memory_mb must be at least 64
--reward.retries -1
    reward.retries must be at least 0: got -1 | 0 for one try
--reward.max_failed 50
    reward.max_failed must be from 0 to 1: got 50.0; use e.g. 0.5
--reward.max_failed -0.1
    reward.max_failed must be from 0 to 1: got -0.1
--reward.remote_url http://one:5000 --reward.max_failed_steps 0
    reward.max_failed_steps must be at least 1: got 0; use e.g. 3
# GPUs
--train.colocate_all --ref.num_gpus_per_node 2
    vllm.num_engines times vllm.tensor_parallel_size must equal the 2 GPUs of the actor | got 1
--train.colocate_all --vllm.num_engines 2
    ref.num_gpus_per_node must equal actor.num_gpus_per_node (2) | got 8; use 2
--train.colocate_actor_ref
    ref.num_gpus_per_node must equal actor.num_gpus_per_node (2)
--algo.advantage.estimator gae --train.colocate_critic_reward --critic.num_gpus_per_node 4
    critic.num_gpus_per_node must equal reward.num_gpus_per_node (8) | got 4
--algo.advantage.estimator gae --train.colocate_all --vllm.num_engines 2 --ref.num_gpus_per_node 2
    critic.num_gpus_per_node times critic.num_nodes must not exceed the 2 GPUs | got 8
# batches
--train.batch_size 126 --train.micro_batch_size 4
    train.batch_size must be a multiple of train.micro_batch_size (4) times the 2 actor ranks | use e.g. 128
--rollout.batch_size 1 --rollout.micro_batch_size 4
    gives 4 rollouts, less than one micro-batch of 4 for each of 2 actor ranks
--rollout.batch_size 1 --train.batch_size 16 --train.micro_batch_size 8
    train.micro_batch_size exceeds a rank's share of the 4 rollouts | no training step
--rollout.batch_size 3 --rollout.micro_batch_size 4 --algo.advantage.estimator group_norm
    12 rollouts | do not share out evenly over 2 actor ranks | 4 to 8 training steps
--train.dynamic_batch_enable --rollout.batch_size 16
    train.batch_size exceeds the 64 rollouts | no optimizer step | got 128; use at most 64
--train.agent_func_path nowhere.py
    train.agent_func_path must be a Python file | 'nowhere.py'
--train.agent_func_path model
    train.agent_func_path must be a Python file
# models
--actor.model_name_or_path ./nowhere
    actor.model_name_or_path names a folder that is not there
--actor.model_name_or_path ~/nowhere
    is not there (the shell did not expand ~)
--actor.model_name_or_path reward.py/../.
    a folder | reward.py/../.
--algo.advantage.estimator gae --critic.model_name_or_path /nowhere --critic.num_gpus_per_node 1
    critic.model_name_or_path names a folder that is not there
# data sets
--data.prompt_dataset nowhere.jsonl
    data.prompt_dataset: nowhere.jsonl does not exist
--data.prompt_dataset ./nowhere
    data.prompt_dataset: ./nowhere does not exist
--data.prompt_dataset reward.py
    loading script | no longer runs
--data.prompt_dataset prompts.jsonl,nowhere.csv
    nowhere.csv does not exist
--data.prompt_probs 0.5,0.5
    data.prompt_probs must be one for each of 1 data sets
--data.prompt_split test
    data.prompt_split: prompts.jsonl has no split 'test'; use one of train
--eval.dataset nowhere.json
    eval.dataset: nowhere.json does not exist
--data.input_key prompt
    data.input_key is not a column of prompts.jsonl | got 'prompt' | --data.input_key | question, answer
--data.label_key gold
    data.label_key is not a column of prompts.jsonl (--data.prompt_dataset) | got 'gold' | question, answer
"""


@pytest.mark.parametrize(("changes", "parts"), table(REFUSED))
def test_refused(job, capsys, changes, parts):
    check_refused(capsys, job(changes), parts)


REWARD_MODEL = "--reward.model_name_or_path"
SHARED = "--train.colocate_all --vllm.num_engines 2 --ref.num_gpus_per_node 2"


@pytest.mark.parametrize(
    ("without", "changes", "part"),
    [
        ("actor.model_name_or_path", "", "actor.model_name_or_path is needed"),
        ("data.prompt_dataset", "", "data.prompt_dataset is needed"),
        ("reward.remote_url", "", "reward.remote_url is needed, or nothing gives a reward"),
        ("vllm.num_engines", "", "vllm.num_engines must be at least 1"),
        ("reward.remote_url", f"{REWARD_MODEL} /nowhere", "reward.model_name_or_path names a folder that is not there"),
        ("reward.remote_url", f"{REWARD_MODEL} model,other", "reward.model_name_or_path must be one model"),
        ("reward.remote_url", f"{REWARD_MODEL} model {SHARED}", "reward.num_nodes must not exceed the 2 GPUs"),
    ],
)
def test_refused_for_what_is_missing(job, capsys, without, changes, part):
    assert part in refusal(capsys, job(changes, without))


def upstream_main(args: argparse.Namespace) -> None:
    """What OpenRLHF's main does between parsing the line and training, i.e. before it starts Ray."""
    source, name = upstream._source()
    main = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    lines = [ast.unparse(node) for node in main.body]
    start = next(number for number, line in enumerate(lines) if "hierarchize(" in line)
    assert lines[-1] == "train(args)"
    config = run_path(str(Path(name).parents[1] / "utils" / "config.py"))
    exec("\n".join(lines[start:-1]), {"args": args, "hierarchize": config["hierarchize"]})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("--rollout.n_samples_per_prompt 1", "group_norm requires n_samples_per_prompt > 1"),
        ("--algo.dynamic_filtering_enable --rollout.n_samples_per_prompt 1", "n_samples_per_prompt"),
        ("--train.async_enable --vllm.enable_sleep --train.colocate_all --ref.num_gpus_per_node 2", "enable_sleep"),
        ("--train.partial_rollout_enable", "partial_rollout_enable requires --train.async_enable"),
        ("--rollout.vllm_generate_batch_size 64", "vllm_generate_batch_size > --rollout.batch_size requires"),
        ("--algo.advantage.estimator gae --data.max_images_per_prompt 1 --critic.num_gpus_per_node 2", "critic model"),
        ("--data.max_images_per_prompt 1 --ds.packing_samples", "does not support --packing_samples"),
        ("--algo.advantage.is_correction_threshold 1 2 3", "takes HIGH or LOW HIGH"),
        (f"{REWARD_MODEL} model --eval.dataset prompts.jsonl", "`--eval_dataset` requires"),
        (f"{REWARD_MODEL} model --algo.dynamic_filtering_enable", "must be specified when using dynamic filtering"),
    ],
)
def test_what_openrlhf_refuses_before_ray_starts_is_left_to_it(job, changes, said):
    without = "reward.remote_url" if REWARD_MODEL in changes else ""
    args = parse(job(f"--algo.advantage.estimator group_norm {changes}", without))
    with pytest.raises(AssertionError) as raised:
        upstream_main(args)
    assert said in str(raised.value)


def test_openrlhf_lets_images_with_dynamic_batches_pass(job):
    args = parse(job("--algo.advantage.estimator group_norm --train.dynamic_batch_enable"))
    vars(args)["data.max_images_per_prompt"] = 1
    upstream_main(args)


@pytest.mark.parametrize(
    "changes",
    [
        "--vllm.tensor_parallel_size 2",
        "--train.colocate_all --vllm.num_engines 2 --ref.num_gpus_per_node 2 --vllm.enable_sleep",
        "--train.colocate_all --vllm.num_engines 2 --algo.kl.init_coef 0",
        "--train.colocate_all --vllm.tensor_parallel_size 2 --algo.kl.init_coef 0",
        "--algo.advantage.estimator group_norm --train.async_enable --vllm.enable_sleep",  # upstream turns sleep off
        "--algo.advantage.estimator group_norm --ds.ring_attn_size 2",
        "--algo.advantage.estimator gae --critic.num_gpus_per_node 2",
        "--rollout.batch_size 2 --rollout.n_samples_per_prompt 3 --rollout.micro_batch_size 2 --train.batch_size 6",
        "--rollout.batch_size 3 --rollout.micro_batch_size 4",  # with shear the fork evens out the ranks
        "--train.dynamic_batch_enable --train.batch_size 126",
        "--algo.advantage.is_correction_level seq --algo.advantage.is_correction_gating tv "
        "--algo.advantage.is_correction_threshold 0.1",
        "--reward.remote_url http://reward:5000,http://reward:5001",
        "--eval.dataset prompts.jsonl --eval.before_train",
        "--critic.model_name_or_path /nowhere",  # only gae has a critic
        "--reward.model_name_or_path /nowhere",  # rewards come from reward.py
        "--data.prompt_dataset prompts.jsonl@anywhere",  # OpenRLHF ignores the part behind @ for files
        "--data.prompt_dataset p*.jsonl",
        "--algo.advantage.estimator uniform --shear.dump_rollouts_every 5",
    ],
)
def test_not_refused(job, changes):
    assert parse(job(changes)).device == "auto"


@pytest.mark.parametrize("reward", ["math", "code"])
def test_built_in_rewards_are_refused_without_labels_and_without_a_jail(job, capsys, monkeypatch, reward):
    def no_jail(allow_unsandboxed=False):
        if not allow_unsandboxed:
            raise JailError("no jail works here: bubblewrap is not installed")

    monkeypatch.setattr("openrlhf_shear.preflight.rewards.find_jail", no_jail)
    told = refusal(capsys, job(f"--reward.remote_url {reward}", without="data.label_key"))
    assert f"data.label_key is needed: --reward.remote_url {reward}" in told
    told = refusal(capsys, job(f"--reward.remote_url {reward}"))
    assert f"reward.remote_url {reward}: no jail works here" in told
    assert parse(job(f"--reward.remote_url {reward} --reward.allow_unsandboxed"))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            b"def reward_func(queries, prompts, labels):\n    return {\n",
            "is not Python (mine.py:2: '{' was never closed)",
        ),
        (b"x = 1\nreturn x\n", "is not Python (mine.py:2: 'return' outside function)"),
        (b"def reward_func(): ...\n\xff\xff", "is not Python (mine.py"),
        (b"reward_func = 0\0", "is not Python (mine.py"),
        (b"class Reward:\n    def reward_func(self, queries, prompts, labels): ...\n", "without reward_func"),
        (b"def compute_score(data_source, solution_str, ground_truth, extra_info): ...\n", "without reward_func"),
    ],
)
def test_a_reward_file_that_python_or_openrlhf_cannot_use(job, capsys, source, says):
    Path("mine.py").write_bytes(source)
    assert says in refusal(capsys, job("--reward.remote_url mine.py"))


@pytest.mark.parametrize(
    "source",
    [
        "# -*- coding: latin-1 -*-\n# caf\xe9\nreward_func = print\n",
        "try:\n    from fast import reward_func\nexcept ImportError:\n    def reward_func(q, p, l): ...\n",
        "if True:\n    reward_func = lambda *lists: 1\n",
        "from mine import *\n",
        "from mine import grade as reward_func\n",
        "raise SystemExit  # which only running it would tell\nreward_func = 1\n",
    ],
)
def test_a_reward_file_that_may_work_is_not_refused_and_not_run(job, source):
    Path("mine.py").write_bytes(source.encode("latin-1"))
    assert vars(parse(job("--reward.remote_url mine.py")))["reward.remote_url"] == "mine.py"


def test_an_optimizer_step_over_several_rollouts_is_warned_of(job, capsys):
    parse(job("--train.batch_size 256"))
    assert "[Warning] train.batch_size (256) exceeds the 128 rollouts" in capsys.readouterr().err


def test_a_model_folder_needs_a_config(job, capsys):
    Path("model/config.json").unlink()
    assert "actor.model_name_or_path names a folder without config.json" in refusal(capsys, job())


def test_a_model_that_cannot_be_reached(job, capsys, monkeypatch):
    import huggingface_hub

    def unreachable(name, file):
        raise FileNotFoundError("no connection\nand more")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    told = refusal(capsys, job("--actor.model_name_or_path no/such-model"))
    assert (
        "neither a folder here nor a model that can be reached on the hub (no connection): got 'no/such-model'" in told
    )
    assert "neither a folder here" in refusal(capsys, job("--actor.model_name_or_path a/b/c/d"))  # no hub id at all
    parse(job("--actor.model_name_or_path no/such-model --use_ms"))


def test_a_model_in_the_cache_or_on_the_hub_is_fine(job, monkeypatch):
    import huggingface_hub

    asked = []
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, file: asked.append((name, file)))
    parse(job("--actor.model_name_or_path some/model"))
    assert asked == [("some/model", "config.json")]
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", None)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: "config.json")
    assert vars(parse(job("--actor.model_name_or_path some/model")))["actor.model_name_or_path"] == "some/model"


def test_a_data_set_that_cannot_be_reached(job, capsys, monkeypatch):
    import datasets

    def unreachable(*args, **kwargs):
        raise ConnectionError("no connection\nand more")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    told = refusal(capsys, job("--data.prompt_dataset no/such-data"))
    assert "data.prompt_dataset: no/such-data is neither a file or folder here nor a data set" in told
    assert "(no connection)" in told
    parse(job("--data.prompt_dataset no/such-data --use_ms"))


def test_a_hub_data_set_is_streamed_and_checked(job, capsys, monkeypatch):
    import datasets

    def load_dataset(name, data_dir=None, streaming=False):
        assert (name, data_dir, streaming) == ("some/data", "main", True)
        rows = datasets.Dataset.from_list([{"question": "q", "gold": "a"}])
        return datasets.IterableDatasetDict({"train": rows.to_iterable_dataset()})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    parse(job("--data.prompt_dataset some/data@main --data.label_key gold"))
    assert "one of its columns: question, gold" in refusal(capsys, job("--data.prompt_dataset some/data@main"))
    told = refusal(capsys, job("--data.prompt_dataset some/data@main --data.prompt_split test"))
    assert "data.prompt_split: some/data has no split 'test'; use one of train" in told


ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]


def write_arrow(path: str, data) -> None:
    from datasets.arrow_writer import ArrowWriter

    with ArrowWriter(path=path, features=data.features) as writer:
        for row in data:
            writer.write(row)
        writer.finalize()


def write_splits(path: str, data) -> None:
    from datasets import DatasetDict

    DatasetDict({"train": data}).save_to_disk(path)


def write_files(path: str, data) -> None:
    Path(path).mkdir()
    write_rows(f"{path}/train.jsonl", list(data))


WRITERS = {
    "jsonl": lambda path, data: write_rows(path, list(data)),
    "json": lambda path, data: Path(path).write_text(json.dumps(list(data), indent=1)),
    "csv": lambda path, data: data.to_csv(path),
    "parquet": lambda path, data: data.to_parquet(path),
    "arrow": write_arrow,
    "saved": lambda path, data: data.save_to_disk(path),
    "saved_splits": write_splits,
    "files": write_files,
}


def write_data_set(kind: str, rows: list[dict]) -> str:
    import datasets

    columns = {name: [row[name] for row in rows] for name in ("question", "answer")}
    features = datasets.Features(dict.fromkeys(columns, datasets.Value("string")))
    WRITERS[kind](f"data.{kind}", datasets.Dataset.from_dict(columns, features=features))
    return f"data.{kind}"


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_local_data_set(job, capsys, kind):
    path = write_data_set(kind, ROWS)
    parse(job(f"--data.prompt_dataset {path} --eval.dataset {path}"))
    told = refusal(capsys, job(f"--data.prompt_dataset {path} --data.label_key gold"))
    assert f"data.label_key is not a column of {path}" in told
    assert "question, answer" in told
    told = refusal(capsys, job(f"--eval.dataset {path} --data.label_key gold"))
    assert "gold" in told
    if kind != "saved":  # a single saved data set has no splits, and OpenRLHF asks for none
        assert "has no split 'dev'" in refusal(capsys, job(f"--data.prompt_dataset {path} --data.prompt_split dev"))


@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind != "files"])
def test_an_empty_data_set(job, capsys, kind):
    path = write_data_set(kind, [])
    told = refusal(capsys, job(f"--data.prompt_dataset {path}"))
    if kind.startswith("saved"):  # load_from_disk itself refuses them
        assert f"data.prompt_dataset: {path} cannot be read" in told
    else:
        assert f"data.prompt_dataset has no rows: got '{path}'" in told


def test_a_key_of_later_rows_is_a_column_and_no_more_rows_are_read_than_needed(job):
    write_rows("late.jsonl", [{"question": "q"}, {"question": "q", "answer": "a"}])
    parse(job("--data.prompt_dataset late.jsonl"))
    Path("long.jsonl").write_text(json.dumps(ROWS[0]) + "\nnot json at all\n")
    parse(job("--data.prompt_dataset long.jsonl"))


def test_a_broken_file_and_rows_that_are_no_objects(job, capsys):
    Path("broken.jsonl").write_text("{broken\n")
    assert "broken.jsonl cannot be read" in refusal(capsys, job("--data.prompt_dataset broken.jsonl"))
    Path("numbers.jsonl").write_text("1\n2\n")
    assert "must hold objects, one a row: got int" in refusal(capsys, job("--data.prompt_dataset numbers.jsonl"))
    Path("text.txt").write_text("hello\n")
    assert "text.txt is not of a known kind" in refusal(capsys, job("--data.prompt_dataset ./text.txt"))


@pytest.mark.parametrize("options", [[], ["-O"]])
def test_errors_come_before_ray_and_under_optimisation_too(job, options):
    run, loaded = run_fresh("train_ppo_ray", job("--data.label_key gold"), HEAVY[:-1], options=options)
    assert (run.returncode, loaded) == (2, [])
    assert "data.label_key is not a column of prompts.jsonl" in run.stderr
    assert ("[Warning] python -O drops OpenRLHF's own checks" in run.stderr) == bool(options)
