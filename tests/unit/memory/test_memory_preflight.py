"""Memory of a GPU: by hand for a 7B run, for settings that are known to run or to fail, and for our advice."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from cases import table
from command_lines import ROOT, refusal, write_tokenizer
from test_recipes import MODELS, command, grid

from openrlhf_shear.cli.train_ppo_ray import main, read
from openrlhf_shear.doctor import gpu
from openrlhf_shear.line.run import Run
from openrlhf_shear.memory.estimate import GIB, pass_tokens
from openrlhf_shear.memory.model_shape import model_shape
from openrlhf_shear.preflight import checks, rewards
from openrlhf_shear.preflight.memory import memory, plan

NAMES = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
NAMES = (*NAMES, "intermediate_size", "vocab_size")
CONFIGS = table("memory", "CONFIGS")  # of the hub, and their numbers of parameters there
SLEEP = "--vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization"
HYBRID, OF_8B, PPO_8B, DAPO_8B, PRORL, LONG_7B = table("memory", "FLAGS").values()


def write_model(folder: Path, values: tuple, others: dict) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(zip(NAMES, values, strict=True)) | others))
    write_tokenizer(folder)
    return folder


@pytest.fixture
def line(job, tmp_path):
    """A function: a model of `CONFIGS`, flags, GiB of a GPU -> a complete command line."""

    def build(model: str, words: str, memory: float = 80.0) -> list[str]:
        folder = write_model(tmp_path / model, *CONFIGS[model][:2])
        files = {"data.prompt_dataset": "prompts.jsonl", "data.input_key": "question"}
        by_model = "critic" in words
        reward = {"reward.model_name_or_path": str(folder)} if by_model else {"reward.remote_url": "reward.py"}
        values = {"actor.model_name_or_path": str(folder), "device_memory": str(memory)}
        return job(words, files | reward | values)

    return build


def estimated(words: list[str]):
    verdict = read(words)
    return plan(verdict.run, verdict.models).estimate()


def shape_of(folder: Path):
    return model_shape(json.loads((folder / "config.json").read_text()), folder)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_hub(tmp_path, name):
    values, others, parameters = CONFIGS[name]
    assert shape_of(write_model(tmp_path / "model", values, others)).parameters == parameters


def test_of_other_architectures_the_weights_themselves_say_how_many(tmp_path):
    folder = write_model(tmp_path / "model", CONFIGS["llama-3-8b"][0], {"torch_dtype": "bfloat16"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 2_000_000}}))
    assert shape_of(folder).parameters == 1_000_000


def test_a_7b_run_by_hand(line):
    """Qwen2.5-7B, 8 ranks, ZeRO-3, 16384 tokens a pass, groups of 8 x 3072; P = 7,615,616,512, V = 152064, d = 3584."""
    words = f"{HYBRID} {SLEEP} 0.6 --vllm.num_engines 8 --algo.advantage.estimator shear --algo.kl.init_coef 0 "
    words += "--rollout.n_samples_per_prompt 8 --rollout.batch_size 64 --train.batch_size 32 --data.max_len 4096 "
    words += "--rollout.max_new_tokens 3072 --train.dynamic_batch_enable --train.max_tokens_per_gpu 16384"
    whole = estimated(line("qwen2.5-7b", words))
    generation, log_probs, credit, backward, step = whole.phases
    cache = 4096 * 28 * 4 * 128 * (2 + 2)  # tokens, layers, heads, their size: keys and values
    assert whole.engine == 15_231_233_024 + cache + 2 * GIB
    shard = 1_903_904_128  # 2 P / 8
    assert generation.parts == pytest.approx({"weights": shard, "vLLM": 0.6 * 80 * GIB, "reserve": GIB})
    by_hand = {
        "weights": shard + 2_000_000_000,  # gathered: 1e9 parameters
        "gradients": shard + 2_000_000_000,  # two buckets of 5e8
        "optimizer": 11_423_424_768,  # 12 P / 8
        "logits": 24_914_165_760,  # 16384 * 152064 * (4 + 4 + 2)
        # a token: 28 inputs of layers; in one layer 18 d + 4 (3584 + 512) + 8 f kept, 6 f + 8 d of gradients
        "activations": 16384 * (200_704 + 232_448 + 142_336),
        "vLLM": GIB,
    }
    assert {part: backward.parts[part] for part in by_hand} == pytest.approx(by_hand)
    assert log_probs.parts["logits"] == 14_948_499_456  # 16384 * 152064 * (2 + 4)
    group = 176_160_768  # 8 * 3072 * 3584 * 2
    assert log_probs.parts["group states"] == 9 * group + 117_440_512  # the 8 of a rank, one of them open, and the pass
    assert credit.parts["group states"] == 9 * group and credit.parts["search"] == 2**30 + group
    _, sources, credit_of_delta, *_ = estimated(line("qwen2.5-7b", f"{words} --algo.advantage.estimator delta")).phases
    assert sources.parts["group states"] == log_probs.parts["group states"], "of the source states, as many"
    assert credit_of_delta.parts["group states"] == 9 * group and "search" not in credit_of_delta.parts
    assert step.parts["step of Adam"] == 3_807_808_256  # 4 P / 8
    assert max(log_probs.total, step.total, credit.total) < backward.total < 60 * GIB


def test_logits_in_chunks_by_hand(line, capsys):
    """Qwen2.5-14B, 32k tokens a rollout: V = 152064, d = 5120. Chunks are what we advise."""
    words = f"{HYBRID} {SLEEP} 0.6 --vllm.num_engines 8 --algo.advantage.estimator uniform --algo.kl.init_coef 0 "
    words += "--rollout.n_samples_per_prompt 8 --data.max_len 32768 --train.micro_batch_size 1 --ds.zero_stage 3 "
    words += "--rollout.micro_batch_size 1 "
    whole, chunked = (estimated(line("qwen2.5-14b", words + more, 140)) for more in ("", "--actor.logits_chunk 2048"))
    logits = {phase.name: phase.parts.get("logits") for phase in whole.phases}
    assert logits["backward"] == 32768 * 152_064 * (4 + 4 + 2) and logits["log-probs"] == 32768 * 152_064 * (2 + 4)
    logits = {phase.name: phase.parts.get("logits") for phase in chunked.phases}
    # A chunk's logits with their gradients, and two bfloat16 gradients of the LM head
    assert logits["backward"] == 2048 * 152_064 * (4 + 4 + 2) + 2 * 2 * 152_064 * 5120
    assert logits["log-probs"] == 2048 * 152_064 * (2 + 4)
    assert "--actor.logits_chunk 2048" in refusal(capsys, line("qwen2.5-14b", words, 80))


@pytest.mark.parametrize(
    ("model", "words", "share", "memory"),
    [
        ("llama-3-8b", PPO_8B, 0.5, 80),
        ("llama-3-8b", DAPO_8B, 0.6, 80),
        ("qwen2.5-1.5b", PRORL, 0.75, 80),
        # No flags of OpenRLHF's for 14B are published: those of 8B, on it.
        ("qwen2.5-14b", OF_8B.replace("2048", "4096") + " --algo.kl.init_coef 0.01", 0.6, 80),
    ],
)
def test_published_settings_fit_and_without_sleep_they_do_not(line, capsys, model, words, share, memory):
    group = "" if "estimator" in words or "critic" in words else " --algo.advantage.estimator reinforce"
    words += group
    assert estimated(line(model, f"{words} {SLEEP} {share}", memory)).peak.total < 0.95 * memory * GIB
    assert "[Warning] memory" not in capsys.readouterr().err
    told = refusal(capsys, line(model, words, memory))
    assert "does not fit into a GPU" in told and "use --vllm.enable_sleep" in told
    # The advised flags are enough.
    advised = told.rpartition("; use ")[2]
    assert estimated(line(model, f"{words} {advised}", memory)).peak.total < memory * GIB


@pytest.mark.parametrize(("estimator", "advised"), [("uniform", True), ("otb", False), ("nthr", False)])
def test_rules_that_read_the_lm_head_are_not_advised_to_shard_it(line, capsys, estimator, advised):
    words = f"{HYBRID} {SLEEP} 0.4".replace("--ds.zero_stage 3", "--ds.zero_stage 2")
    words += f" --vllm.num_engines 8 --algo.advantage.estimator {estimator} --algo.kl.init_coef 0 --data.max_len 2048"
    words += " --rollout.n_samples_per_prompt 8"
    told = refusal(capsys, line("qwen2.5-14b", words, 64))
    assert "does not fit into a GPU" in told and ("--ds.zero_stage 3" in told) is advised, told
    read(line("qwen2.5-14b", f"{words} {told.rpartition('; use ')[2]}", 64))


@pytest.mark.parametrize(("rows", "fits"), [(1, True), (2, False)])
def test_a_reported_lack_of_memory_is_foreseen(line, capsys, rows, fits):
    words = line("qwen2.5-7b", f"{LONG_7B} --train.micro_batch_size {rows}", 95)
    if fits:
        estimated(words)
    else:
        told = refusal(capsys, words)
        assert "train.micro_batch_size does not fit" in told and told.endswith("got 2; use --train.micro_batch_size 1")


def test_fixed_micro_batches_of_packed_rollouts_are_warned_of(line, capsys):
    words = "--algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 8 --vllm.num_engines 1 "
    words += "--actor.num_gpus_per_node 8 --ds.zero_stage 3 --actor.gradient_checkpointing_enable --ds.packing_samples "
    words += "--train.micro_batch_size 8 --data.max_len 8192 --algo.kl.init_coef 0"
    read(line("qwen2.5-7b", words))
    told = capsys.readouterr().err
    assert "[Warning] memory: with all rollouts of data.max_len backward takes" in told
    assert "--train.micro_batch_size 2 is safe" in told


def test_memory_grows_with_its_parts(line):
    plain = f"{HYBRID} {SLEEP} 0.4 --vllm.num_engines 8 --algo.advantage.estimator group_norm --algo.kl.init_coef 0 "
    plain += "--rollout.n_samples_per_prompt 8"

    def phases(words: str) -> dict:
        return {phase.name: phase.parts for phase in estimated(line("qwen2.5-7b", words, 1000)).phases}

    before, shard = phases(plain), 2 * 7_615_616_512 / 8
    reference = phases(f"{plain} --algo.kl.init_coef 0.01")
    assert reference["generation"]["reference"] == shard
    assert "reference" not in phases(f"{plain} --algo.kl.init_coef 0.01 --ref.offload")["generation"]
    awake = phases(plain.replace("--ds.enable_sleep", ""))
    assert awake["generation"]["optimizer"] == before["backward"]["optimizer"] == 6 * shard
    assert "optimizer" not in before["generation"]
    offloaded = phases(f"{plain} --ds.adam_offload")
    assert "optimizer" not in offloaded["backward"] and offloaded["backward"]["gradients"] == 2e9
    assert phases(f"{plain} --ds.zero_stage 2")["backward"]["weights"] == 8 * shard
    assert before["backward"]["weights"] == shard + 2e9
    lora = phases(f"{plain} --ds.lora.rank 16")
    adapters = 28 * 16 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))  # q and o, k and v, the MLP
    assert adapters == 40_370_176, "as PEFT counts them"
    assert lora["generation"]["weights"] == shard + 2 * adapters / 8
    assert lora["backward"]["optimizer"] == 12 * adapters / 8
    assert lora["backward"]["gradients"] == 2 * adapters / 8 + 2e9
    every = phases(plain.replace("--actor.gradient_checkpointing_enable", ""))
    assert every["backward"]["activations"] > 10 * before["backward"]["activations"]


def test_critic_and_reward_model_may_have_gpus_of_their_own(line):
    def phases(words: str) -> dict:
        return {
            phase.name: phase.parts for phase in estimated(line("llama-3-8b", f"{PPO_8B} {SLEEP} 0.5 {words}")).phases
        }

    shared, apart = phases(""), phases("--train.colocate_critic_reward")
    assert {"critic", "reward model"} <= shared["generation"].keys() and "critic's GPUs" not in shared
    assert not {"critic", "reward model"} & apart["generation"].keys()
    theirs, shard = apart["critic's GPUs"], 2 * CONFIGS["llama-3-8b"][2] / 8
    assert theirs["reward model"] == shard and theirs["critic"] > 7 * shard
    assert theirs["reserve"] == 2 * GIB + 0.05 * theirs["activations"]


def test_what_zero_3_offloads_counts_as_the_nodes_memory(line):
    def host(words: str) -> float:
        return estimated(line("llama-3-8b", f"{PPO_8B} {SLEEP} 0.5 {words}", 1000)).host

    weights = 2 * CONFIGS["llama-3-8b"][2]
    average = 3  # the model in bfloat16, and the sums in float32
    for words, models in (("--ref.offload", 1), ("--ref.offload --reward.offload --train.enable_ema", 2 + average)):
        assert host(words) - host("") == models * weights
    assert host("--ds.zero_stage 2 --ref.offload") == host("--ds.zero_stage 2"), "it stays on the GPU"


def test_the_command_of_the_recipes_fits(line, monkeypatch):
    monkeypatch.setattr(checks, "CHECKS", [check for check in checks.CHECKS if check is not rewards.code])
    recipes = (ROOT / "docs/recipes.md").read_text()
    shown = re.search(r"ray job submit .*?-- shear-train (.*?)```", recipes, re.S)[1]
    words = shlex.split(shown.replace("\\\n", ""))
    places = [value for flag, value in pairwise(words) if flag in ("--data.prompt_dataset", "--ckpt.path")]
    assert [Path(place).is_absolute() for place in places] == [True, True]
    local = dict(zip(line("qwen2.5-7b", "")[::2], line("qwen2.5-7b", "")[1::2], strict=True))
    here = {"--ckpt.path": "ckpt", "--ckpt.output_dir": "out"}
    here |= {"--data.input_key": "question", "--data.label_key": "answer"}
    here |= {name: local[name] for name in ("--actor.model_name_or_path", "--data.prompt_dataset")}
    words += [word for flag, value in here.items() for word in (flag, value)]  # the last one counts
    assert estimated([*words, "--device_memory", "80"]).peak.total < 0.95 * 80 * GIB


@pytest.mark.parametrize("sweep", ["main", "groups"])
def test_the_papers_runs_fit(line, job, tmp_path, monkeypatch, sweep):
    monkeypatch.setattr(checks, "CHECKS", [])
    monkeypatch.setattr(checks, "OF_MODELS", [memory])
    monkeypatch.setattr(checks, "data", lambda run: iter(()))
    names = dict(zip(MODELS.values(), ("qwen2.5-7b", "qwen2.5-7b", "llama-3-8b", "qwen2.5-14b"), strict=True))
    folders = {hub: str(write_model(tmp_path / name, *CONFIGS[name][:2])) for hub, name in names.items()}
    folders["Qwen/Qwen2.5-Math-PRM-7B"] = folders["Qwen/Qwen2.5-Math-7B"]
    for run in grid(sweep, SEEDS="0"):
        words = [folders.get(word, word) for word in command(*run.split())]
        assert estimated([*words, "--device_memory", "80"]).peak.total < 0.95 * 80 * GIB, run


def test_a_dry_run_shows_the_memory_and_starts_nothing(line, job, capsys):
    words = "--algo.advantage.estimator shear --rollout.n_samples_per_prompt 8 --vllm.num_engines 1"
    main(line("smollm2-135m", f"{words} --dry_run"))
    shown = capsys.readouterr().out
    assert all(part in shown for part in ("0.13B parameters on 8 ranks", "logits", "group states", "has 80.0 GiB"))
    assert "dry run: the line can be used" in shown
    main(job("--dry_run"))  # its config.json is empty
    shown = capsys.readouterr().out
    assert "memory was not estimated: actor.model_name_or_path model: its config.json has no hidden_size" in shown


@pytest.mark.parametrize(("device", "gib", "said"), table("memory", "MAIN_MEMORY"))
def test_the_cpu_profile_is_held_against_the_machines_memory(line, capsys, monkeypatch, device, gib, said):
    """A run of 14.77e9 parameters keeps 16 bytes of each, 220 GiB, and takes more for a pass."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("openrlhf_shear.preflight.memory.free_memory", lambda: (gib * GIB, gib * GIB))
    words = line("qwen2.5-14b", f"--algo.advantage.estimator reinforce --vllm.num_engines 1 --device {device}", 0)
    words += ["--actor.num_gpus_per_node", "1", "--ref.num_gpus_per_node", "1", "--dry_run"]
    if gib < 220:
        assert said in refusal(capsys, words)
        return
    main(words)
    told = capsys.readouterr()
    assert (said in told.err) if said else "memory:" not in told.err
    assert device == "auto" or "CPU profile: " in told.out


@pytest.mark.parametrize(("visible", "smallest"), [(None, 40), ("0", 80), ("0,2", 60), ("", None)])
def test_the_smallest_visible_gpu_decides(monkeypatch, visible, smallest):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(gpu, "ask_driver", lambda: ("580", (13, 0), [gpu.Gpu("a GPU", 0, n) for n in (80, 40, 60)]))
    assert gpu.smallest() == smallest


def test_every_rank_of_a_tensor_parallel_group_passes_the_tokens_of_the_group():
    """Upstream's limit is times ring and tensor-parallel ranks (`get_minimum_num_micro_batch_size`)."""
    values = {
        "data.max_len": 4096,
        "rollout.batch_size": 64,
        "rollout.n_samples_per_prompt": 8,
        "ds.packing_samples": True,
    }
    values |= {"train.batch_size": 512, "train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": 16384}
    values |= {"rollout.max_tokens_per_gpu": None, "actor.num_nodes": 1, "actor.num_gpus_per_node": 8}
    for ring, tensor, tokens in ((1, 1, 16384), (1, 2, 32768), (1, 4, 65536), (2, 1, 16384)):
        layout = {"ds.ring_attn_size": ring, "ds.tensor_parallel_size": tensor}
        assert pass_tokens(Run(values | layout)) == (tokens, tokens)
