"""Trainers on the shipped policy whose completions are drawn once, by the lab's sampling: known whatever TRL draws."""

from functools import lru_cache
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import shear_weights
from openrlhf_shear.integrations.trl import ShearGRPOTrainer
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR, make_problems, parse_problem
from openrlhf_shear.tasks.arithmetic.sampling import sample_ids
from openrlhf_shear.tasks.arithmetic.solutions import check

GROUP = 4
SHEAR = "shear/window=16/stride=4"
LOSSES = ("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")
CONFIG = ShearConfig(window=16, stride=4)


@lru_cache
def policy():
    model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(POLICY_DIR)


@lru_cache
def completion(prompt: str, which: int) -> tuple[int, ...]:
    """A response of the shipped policy to a problem; another for every `which`."""
    model, tokenizer = policy()
    return tuple(sample_ids(model, tokenizer, [prompt], seed=which)[0].tolist())


class Known:
    """Mixin of a trainer: the k-th row of a generation batch, over all processes, gets response k."""

    def _generate(self, prompts):
        ids = self.responses(prompts)
        texts = self.processing_class.batch_decode(ids, skip_special_tokens=True)
        prompt_ids = [self.processing_class.encode(prompt, add_special_tokens=False) for prompt in prompts]
        return prompt_ids, ids, self.tool_masks(ids), texts, None, {}, None, None

    def responses(self, prompts):
        first = self.accelerator.process_index * len(prompts)
        return [list(completion(prompt, first + row)) for row, prompt in enumerate(prompts)]

    def tool_masks(self, ids):
        return None


class KnownTrl(Known, GRPOTrainer):
    """TRL's trainer."""


class KnownShear(Known, ShearGRPOTrainer):
    """Our trainer."""


def right(prompts, completions, **_):
    return [float(check(parse_problem(p), text).correct) for p, text in zip(prompts, completions, strict=True)]


def trainer_on(
    folder: Path,
    kind=KnownShear,
    credit: object = SHEAR,
    rewards=right,
    peft=None,
    prompts=None,
    model=None,
    correct_reward=None,
    **settings,
):
    """Two groups of four a generation batch, in two micro-batches."""
    settings = {
        **{"max_steps": 2, "num_generations": GROUP, "per_device_train_batch_size": 4, "max_completion_length": 120},
        **{"gradient_accumulation_steps": 2, "gradient_checkpointing": False, "bf16": False, "use_cpu": True},
        **{"report_to": [], "save_strategy": "no", "logging_steps": 1, "learning_rate": 1e-3, "disable_tqdm": True},
        **settings,
    }
    prompts = prompts or [problem.prompt for problem in make_problems(32, 10_000)]
    rows = Dataset.from_list([{"prompt": prompt} for prompt in prompts])
    ours = {"credit": credit, "correct_reward": correct_reward} if issubclass(kind, ShearGRPOTrainer) else {}
    return kind(
        model or AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32),
        rewards,
        GRPOConfig(str(folder), **settings),
        rows,
        processing_class=policy()[1],
        peft_config=peft,
        **ours,
    )


def batch_of(trainer) -> dict:
    """A generation batch as the trainer makes it, in training, before it is shuffled."""
    trainer.model.train()
    inputs = next(iter(trainer.get_train_dataloader()))
    return trainer._generate_and_score_completions(inputs)


def groups_of(batch: dict) -> list[slice]:
    return [slice(at, at + GROUP) for at in range(0, len(batch["completion_ids"]), GROUP)]


@torch.no_grad()
def states_of(model, batch: dict) -> list[torch.Tensor]:
    """What enters the LM head at each response token, one rollout at a time and without padding."""
    states = []
    for prompt, begins, ids, kept in zip(
        *(batch[f"{a}_{b}"] for a in ("prompt", "completion") for b in ("ids", "mask")), strict=True
    ):
        row = torch.cat([prompt[begins.bool()], ids[kept.bool()]])[None]
        hidden = model(input_ids=row, output_hidden_states=True).hidden_states[-1][0]
        states.append(hidden[int(begins.sum()) :])
    return states


def expected_weights(model, batch: dict, correct: list[bool | None]) -> list[torch.Tensor]:
    """SHEAR's weights by `shear_weights` itself."""
    states = states_of(model, batch)
    return [
        weight for group in groups_of(batch) for weight in shear_weights(states[group], correct[group], CONFIG).weights
    ]
