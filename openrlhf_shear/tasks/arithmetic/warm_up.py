"""Warm-up of the small policy: supervised training on written solutions, until *sampled* responses are often right.

Legend: B problems a batch, L tokens of the longest prompt + response + <eos>.
"""

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from openrlhf_shear.config.knobs import COUNT, POSITIVE, Knobs, Range, knob
from openrlhf_shear.kernels.bfloat16 import multiply_in_float32
from openrlhf_shear.tasks.arithmetic.policy import build_model, build_tokenizer, fused_attention
from openrlhf_shear.tasks.arithmetic.problems import FEWEST_OPERATIONS, LETTERS, STEPS
from openrlhf_shear.tasks.arithmetic.sampling import Accuracy, sampled_checks
from openrlhf_shear.tasks.arithmetic.task import ArithmeticTask

# of knobs that every warm-up has
SEED = "Seed of initial weights and training problems."
TARGET = "Stop when this share of responses sampled at temperature 1 is right."
MOST_STEPS = "Give up after this many steps."
OPEN_SHARE = Range(0, 1, open_least=True, open_most=True)
IGNORED = -100  # the label that the cross-entropy ignores
MAYBE_RIGHT = 0.4  # nats a token; at a higher loss hardly any response is right, and sampling costs seconds


@dataclass(frozen=True)
class WarmUpSettings(Knobs, section="warm_up"):
    """Settings of the warm-up, on problems with `operations`.

    The learning rate rises over the first 50 steps and then stays constant. A policy cooled down at a lower rate sits
    in a sharp minimum, from which reinforcement learning hardly moves it.
    """

    seed: int = knob(0, SEED)
    target_accuracy: float = knob(0.4, TARGET, OPEN_SHARE)
    max_steps: int = knob(4000, MOST_STEPS, COUNT)
    operations: int = knob(
        STEPS,
        "Operations a problem; the task's data and reward have 7, other numbers are for studies.",
        Range(FEWEST_OPERATIONS, len(LETTERS)),
    )
    batch_size: int = knob(48, "Problems a step.", COUNT)
    learning_rate: float = knob(1.5e-3, "Learning rate after the first 50 steps.", POSITIVE)
    evaluate_every: int = knob(20, "Steps between two looks at the sampled accuracy.", Range(4))
    evaluation_problems: int = knob(512, "Problems of such a look.", COUNT)
    final_problems: int = knob(1024, "Held-out problems of the accuracy at the end.", COUNT)


@dataclass(frozen=True)
class WarmUpResult:
    """Warmed-up policy in bfloat16, and its `accuracy`, on other problems than those that ended the training."""

    model: Qwen2ForCausalLM
    tokenizer: PreTrainedTokenizerBase
    accuracy: Accuracy
    steps: int
    seconds: float
    reached_target: bool

    @property
    def remark(self) -> str:
        return f"{self.accuracy.lucky:.1%} of the right answers come from a wrong chain"


def encode_batch(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], responses: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `input_ids` and `labels`, `(B, L)` int64, padded on the right; labels on the response and `<eos>` only."""
    inputs, labels = [], []
    for prompt, response in zip(prompts, responses, strict=True):
        ids = torch.tensor([*tokenizer.encode(prompt + response, add_special_tokens=False), tokenizer.eos_token_id])
        start = len(tokenizer.encode(prompt, add_special_tokens=False))
        inputs.append(ids)
        labels.append(torch.cat([torch.full((start,), IGNORED), ids[start:]]))
    return (
        pad_sequence(inputs, batch_first=True, padding_value=tokenizer.pad_token_id),
        pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    )


def warm_up(settings: WarmUpSettings, report: Callable[[str], None] = tqdm.write) -> WarmUpResult:
    """Train on fresh solutions until the sampled accuracy reaches the target, then round to bfloat16 and measure again.

    The same settings and the same number of threads give the same weights on one machine.
    """
    multiply_in_float32()
    task = ArithmeticTask(settings.operations)
    tokenizer = build_tokenizer(settings.operations)
    model = build_model(tokenizer, settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    problems = iter(task.problems(settings.max_steps * settings.batch_size, settings.seed))
    stop_problems = task.problems(settings.evaluation_problems, settings.seed + 1)
    final_problems = task.problems(settings.final_problems, settings.seed, "heldout")
    rng = random.Random(settings.seed)
    started = time.perf_counter()
    reached, rising, step = False, False, 0
    with tqdm(total=settings.max_steps, desc="warm-up", unit="step") as bar:
        while step < settings.max_steps and not reached:
            batch = [next(problems) for _ in range(settings.batch_size)]
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * min(1.0, step / 50)
            loss = train_step(model, tokenizer, optimizer, task, batch, rng)
            bar.update()
            bar.set_postfix(loss=f"{loss:.3f}")
            every = settings.evaluate_every // 4 if rising else settings.evaluate_every  # it rises steeply
            if step % every == 0 and loss < MAYBE_RIGHT:
                accuracy = Accuracy.of(sampled_checks(model, tokenizer, task, stop_problems, settings.seed))
                report(f"step {step}: loss {loss:.3f}, sampled accuracy {accuracy.correct:.3f}")
                reached = accuracy.correct >= settings.target_accuracy
                rising = rising or accuracy.correct >= settings.target_accuracy / 8
    seconds = time.perf_counter() - started
    model = model.to(torch.bfloat16).eval()
    final = Accuracy.of(sampled_checks(model, tokenizer, task, final_problems, settings.seed + 1))
    return WarmUpResult(model, tokenizer, final, step, seconds, reached)


def train_step(model, tokenizer, optimizer, task, problems: Sequence, rng: random.Random) -> float:
    """Take one optimizer step on written responses to a task's problems; return the loss in nats a token.

    Long responses are read in bfloat16.
    """
    responses = [task.written(problem, rng) for problem in problems]
    input_ids, labels = encode_batch(tokenizer, [problem.prompt for problem in problems], responses)
    attention = fused_attention(model) if task.long_responses else contextlib.nullcontext()
    with attention, torch.autocast("cpu", torch.bfloat16, enabled=task.long_responses):
        # Padding is on the right, so with causal attention no token that has a label sees it.
        loss = model(input_ids=input_ids, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()
