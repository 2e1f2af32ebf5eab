"""The arithmetic task's small policy: a 0.64M-parameter Qwen2 model, one token a character, and its warm-up.

Reinforcement learning needs a policy that is sometimes right. The warm-up is supervised training on written solutions,
stopped as soon as the accuracy of *sampled* responses (temperature 1) crosses a target. The result is an ordinary
Hugging Face folder that `AutoTokenizer`, `AutoModelForCausalLM` and vLLM load without remote code.

Legend: B problems a batch, L tokens of the longest prompt + response + <eos>.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from openrlhf_shear.arithmetic.problems import (
    STEPS,
    Problem,
    alphabet,
    different_problems,
    make_problems,
    max_response_tokens,
    write_solution,
)
from openrlhf_shear.arithmetic.sampling import Accuracy, sampled_accuracy

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
MAX_POSITIONS = 512  # 418 tokens are the most: a prompt of 12 operations and its response with 8 fillers a step
MAX_FILLERS = 8
IGNORED = -100  # the label that the cross-entropy leaves out
MAYBE_RIGHT = 0.4  # nats a token; above it hardly a response is right, and sampling to find that out costs seconds


@dataclass(frozen=True)
class WarmUpSettings:
    """How the policy is warmed up.

    The learning rate rises over the first 50 steps and stays: a policy cooled down at a lower rate sits in a sharp
    minimum, from which reinforcement learning hardly moves it. The accuracy rises steeply once a few responses are
    right, so from then on it is measured four times as often. `operations` a problem and at most `fillers` before each
    step make the task easier or harder.
    """

    seed: int = 0
    target_accuracy: float = 0.4
    batch_size: int = 48
    learning_rate: float = 1.5e-3
    max_steps: int = 4000
    evaluate_every: int = 20
    evaluation_problems: int = 512
    final_problems: int = 1024
    operations: int = STEPS
    fillers: int = 2

    def __post_init__(self):
        alphabet(self.operations)  # raises outside its range
        if not 0 <= self.fillers <= MAX_FILLERS:
            raise ValueError(f"fillers must be between 0 and {MAX_FILLERS}: got {self.fillers}; use e.g. 2")
        if not 0 < self.target_accuracy < 1:
            raise ValueError(f"target_accuracy must be between 0 and 1: got {self.target_accuracy}; use e.g. 0.4")
        if (
            min(self.batch_size, self.max_steps, self.evaluation_problems, self.final_problems) < 1
            or self.evaluate_every < 4
        ):
            raise ValueError(f"sizes and step counts must be at least 1, evaluate_every at least 4: got {self}")


@dataclass(frozen=True)
class WarmUpResult:
    """The warmed-up policy in bfloat16; `accuracy` is measured on it, on problems that did not decide when to stop."""

    model: Qwen2ForCausalLM
    tokenizer: Qwen2Tokenizer
    accuracy: Accuracy
    steps: int
    seconds: float
    reached_target: bool


def build_tokenizer(operations: int = STEPS) -> Qwen2Tokenizer:
    """Qwen2's byte-level tokenizer without merges: one token a character of `alphabet(operations)`, decoded exactly.

    It is a `Qwen2Tokenizer` because transformers 5 loads no other class next to a Qwen2 model, whatever the folder
    says. That class has no unknown token: characters outside the alphabet, spaces too, are dropped without a word, so
    a prompt of this policy is the bare prompt of a problem.

    Raises:
        ValueError: `operations` is not in 1..12.
    """
    tokens = [PAD, EOS, UNK, *alphabet(operations)]
    return Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[],
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """Three layers of width 128, four heads of 32 (a head size vLLM's CPU attention has), about 0.64M parameters."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return model


def encode_batch(
    tokenizer: Qwen2Tokenizer, prompts: list[str], responses: list[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """`input_ids` and `labels`, both `(B, L)` int64, padded on the right; labels on the response and `<eos>` only."""
    inputs, labels = [], []
    for prompt, response in zip(prompts, responses, strict=True):
        ids = torch.tensor([*tokenizer.encode(prompt + response, add_special_tokens=False), tokenizer.eos_token_id])
        inputs.append(ids)
        labels.append(torch.cat([torch.full((len(prompt),), IGNORED), ids[len(prompt) :]]))
    return (
        pad_sequence(inputs, batch_first=True, padding_value=tokenizer.pad_token_id),
        pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    )


def warm_up(settings: WarmUpSettings, report: Callable[[str], None] = tqdm.write) -> WarmUpResult:
    """Train on fresh solutions until the sampled accuracy reaches the target, then round to bfloat16 and measure again.

    The same settings and the same number of threads give the same weights on one machine. With one operation there are
    fewer problems than the training may need; they then come round again.
    """
    operations, budget = settings.operations, max_response_tokens(settings.operations, settings.fillers)
    tokenizer = build_tokenizer(operations)
    model = build_model(tokenizer, settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    needed = min(settings.max_steps * settings.batch_size, different_problems(operations) * 3 // 4)
    problems = itertools.cycle(make_problems(needed, settings.seed, operations=operations))
    stop_problems = make_problems(settings.evaluation_problems, settings.seed + 1, operations=operations)
    final_problems = make_problems(settings.final_problems, settings.seed, "heldout", operations)
    rng = random.Random(settings.seed)
    started = time.perf_counter()
    reached, rising, step = False, False, 0
    with tqdm(total=settings.max_steps, desc="warm-up", unit="step") as bar:
        while step < settings.max_steps and not reached:
            batch = [next(problems) for _ in range(settings.batch_size)]
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * min(1.0, step / 50)
            loss = _train_step(model, tokenizer, optimizer, batch, rng, settings.fillers)
            bar.update()
            bar.set_postfix(loss=f"{loss:.3f}")
            every = settings.evaluate_every // 4 if rising else settings.evaluate_every
            if step % every == 0 and loss < MAYBE_RIGHT:
                accuracy = sampled_accuracy(model, tokenizer, stop_problems, settings.seed, budget)
                report(f"step {step}: loss {loss:.3f}, sampled accuracy {accuracy.correct:.3f}")
                reached = accuracy.correct >= settings.target_accuracy
                rising = rising or accuracy.correct >= settings.target_accuracy / 8
    seconds = time.perf_counter() - started
    model = model.to(torch.bfloat16).eval()
    final = sampled_accuracy(model, tokenizer, final_problems, settings.seed + 1, budget)
    return WarmUpResult(model, tokenizer, final, step, seconds, reached)


def save_policy(result: WarmUpResult, out: str | Path) -> Path:
    """Write the folder: config, generation config, tokenizer, bfloat16 safetensors."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    result.model.save_pretrained(out)
    result.tokenizer.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # written for its owner only, which fails in a shared installation
    return out


def _train_step(model, tokenizer, optimizer, problems: list[Problem], rng: random.Random, fillers: int) -> float:
    responses = [write_solution(problem, rng, fillers) for problem in problems]
    input_ids, labels = encode_batch(tokenizer, [problem.prompt for problem in problems], responses)
    # Padding is on the right, so causal attention already keeps it away from every token that has a label.
    loss = model(input_ids=input_ids, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()
