"""A run that is resumed in the middle of its schedule is the run that was not interrupted, update by update."""

import math
import shutil

import gradients
import pytest
import torch
from ranks import run_ranks
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from openrlhf_shear.tasks.arithmetic.policy import save, seeded
from openrlhf_shear.tasks.arithmetic.problems import write_dataset

UPDATES, BATCH = 5, 4
STEPS = 10  # of the schedule, as the worker says
RATE, WARMUP, LEAST = 1e-3, 2, 0.1
CASES = {  # name -> ZeRO's stage, whether the head is tied, the update that a checkpoint is made after
    "in the warm-up": (2, True, 0),
    "in the decay": (3, False, 2),
}


def rate(step: int) -> float:
    """Of a cosine with a least rate, after a linear warm-up from 0."""
    if step < WARMUP:
        return RATE * step / WARMUP
    return RATE * (LEAST + (1 - LEAST) * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2)


class Runs:
    """Runs of workers that share a folder and a batch."""

    def __init__(self, folder):
        self.folder = folder
        self.tokenizer = AutoTokenizer.from_pretrained(gradients.POLICY)
        self.rollouts = gradients.make_rollouts(UPDATES * BATCH)
        write_dataset(folder / "train.jsonl", 16, seed=0)

    def policy(self, tied: bool) -> str:
        special = {name: getattr(self.tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
        shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        shape |= {"vocab_size": len(self.tokenizer), "num_key_value_heads": 2, "tie_word_embeddings": tied}
        made = seeded(Qwen2ForCausalLM, Qwen2Config(**shape, **special), seed=1)
        return str(save(made, self.tokenizer, self.folder / f"tied_{tied}"))

    def phase(self, name: str, resumes: bool, words: tuple[str, ...] = ()) -> dict:
        stage, tied, saved_after = CASES[name]
        row = gradients.Row(name, f"--ds.zero_stage {stage} --train.batch_size {BATCH}")
        line = [
            *gradients.line(row, self.folder),
            *("--actor.model_name_or_path", self.policy(tied), "--ckpt.path", str(self.folder / name)),
            *("--actor.lr_scheduler", "cosine_with_min_lr", "--actor.lr_warmup_ratio", str(WARMUP / STEPS)),
            *("--actor.min_lr_ratio", str(LEAST), "--actor.adam.lr", str(RATE), "--actor.adam.betas", "0.9", "0.95"),
            *("--actor.adam.eps", "1e-8", *(["--ckpt.load_enable"] if resumes else [])),
            *words,
        ]
        if "--ds.zero_stage 0" not in " ".join(words):
            line += ["--train.enable_ema", "--train.ema_beta", "0.5"]
        updates = list(range(saved_after + 1 if resumes else 0, UPDATES))
        model = str(self.folder / f"{name}_{resumes}")
        return {"line": line, "updates": updates, "saved_after": None if resumes else saved_after, "model": model}

    def run(self, phases: list[dict]) -> list[dict]:
        name = "phases"
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(gradients.measure.free_port())}
        torch.save({"phases": phases, "rollouts": self.rollouts, "environment": where}, self.folder / f"{name}.pt")
        run_ranks("resume_rank", 1, name, self.folder)
        return torch.load(self.folder / f"{name}_done.pt")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("resumed"))


@pytest.fixture(scope="module")
def done(runs):
    """Of each case, the whole run and the resumed part of it, in one process."""
    made = runs.run([runs.phase(name, resumes) for name in CASES for resumes in (False, True)])
    return {name: made[2 * i : 2 * i + 2] for i, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_learning_rates_and_weights_are_those_of_the_run_that_was_not_interrupted(done, name):
    whole, resumed = done[name]
    assert whole["rates"] == pytest.approx([rate(step) for step in range(UPDATES)], rel=1e-9)
    assert len(set(whole["rates"])) == UPDATES
    assert resumed["rates"] == whole["rates"][CASES[name][2] + 1 :]
    assert all(torch.equal(resumed["weights"][part], weight) for part, weight in whole["weights"].items())


@pytest.mark.parametrize("name", CASES)
def test_the_moving_average_of_the_weights_is_that_of_the_run_that_was_not_interrupted(done, name):
    whole, resumed = done[name]
    assert resumed["averaged_steps"] == whole["averaged_steps"] > 0
    assert resumed["averages"].keys() == whole["averages"].keys() == whole["weights"].keys()
    for part, average in whole["averages"].items():
        assert torch.equal(resumed["averages"][part], average)
        assert not torch.equal(average, whole["weights"][part]), "an average, not the weights"


@pytest.mark.parametrize("name", CASES)
def test_the_moving_average_is_that_of_the_float32_weights(done, name):
    """Beside float64 sums of the master weights after each step. A float32 sum rounds to some 1e-7 of a weight."""
    whole, _ = done[name]
    for part, average in whole["averages"].items():
        expected = whole["expected_averages"][part]
        assert torch.allclose(average.double(), expected, rtol=1e-6, atol=1e-9)
        shown = whole["average_model"][part][: average.numel()]
        assert torch.equal(shown, average.flatten().to(shown)), "the model that is saved"


@pytest.mark.parametrize("name", CASES)
def test_the_weights_sent_and_saved_are_those_trained_and_tied_ones_stay_tied(runs, done, name):
    tied = CASES[name][1]
    start = AutoModelForCausalLM.from_pretrained(runs.folder / f"tied_{tied}").state_dict()
    for resumes, part in enumerate(done[name]):
        trained = {name: weight.bfloat16() for name, weight in part["weights"].items()}
        assert part["tied"] is tied and ("lm_head.weight" in trained) is not tied
        assert all(not torch.equal(weight, start[name].bfloat16()) for name, weight in trained.items())
        if tied:
            trained["lm_head.weight"] = trained["model.embed_tokens.weight"]  # vLLM wants it under its own name
        saved = AutoModelForCausalLM.from_pretrained(runs.folder / f"{name}_{bool(resumes)}")
        assert (saved.lm_head.weight is saved.model.embed_tokens.weight) is tied
        for got in (part["sent"], saved.state_dict()):
            assert got.keys() == trained.keys()
            assert all(torch.equal(got[name], weight) for name, weight in trained.items())


@pytest.fixture(scope="module")
def others(runs, done):
    """A resume with other flags, and a resume whose newest checkpoint has a flipped byte."""
    second = list(CASES)[1]
    lines = {
        "adam": (second, (*f"--actor.adam.lr {2 * RATE} --actor.adam.betas 0.8 0.9 --actor.adam.eps 1e-7".split(),)),
        "byte": (second, ()),
    }
    folder = runs.folder / second / "_actor"
    newer = shutil.copytree(folder / "global_step3", folder / "global_step4")
    broken = max(newer.glob("*optim_states.pt"))
    content = bytearray(broken.read_bytes())
    content[len(content) // 2] ^= 1
    broken.write_bytes(content)
    made = runs.run([runs.phase(name, True, words=words) for name, words in lines.values()])
    return dict(zip(lines, made, strict=True))


@pytest.mark.parametrize("stage", range(4))
def test_adams_first_step_has_the_size_of_its_rate(first_steps, stage):
    """g / (|g| + eps) is 1 at the largest gradient. DeepSpeed's empty step under ZeRO-0 made it 0.735."""
    (size,) = first_steps[stage]["sizes"]
    assert size == pytest.approx(RATE, rel=1e-2)


@pytest.fixture(scope="module")
def first_steps(runs):
    """Runs of one update, without a warm-up, under each stage of ZeRO."""
    phases = [
        runs.phase("in the warm-up", False, words=f"--ds.zero_stage {stage} --actor.lr_warmup_ratio 0".split())
        | {"updates": [0], "saved_after": None}
        for stage in range(4)
    ]
    return runs.run(phases)


def test_another_learning_rate_resumes_at_the_same_place_of_the_schedule(others):
    assert others["adam"]["rates"] == pytest.approx([2 * rate(step) for step in range(3, UPDATES)], rel=1e-9)


def test_a_resume_takes_adam_s_betas_and_epsilon_from_the_command_line(done, others):
    saved = {"betas": (0.9, 0.95), "eps": 1e-8}
    assert all(part["adam"] == saved for parts in done.values() for part in parts)
    assert others["adam"]["adam"] == {"betas": (0.8, 0.9), "eps": 1e-7}


def test_a_checkpoint_with_a_flipped_byte_is_passed_over_for_the_one_before(done, others):
    whole = done[list(CASES)[1]][0]
    assert all(torch.equal(others["byte"]["weights"][part], weight) for part, weight in whole["weights"].items())
