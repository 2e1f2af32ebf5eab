"""Warm-up of a bookkeeping policy: supervised training on written entries, their misconceptions included.

It ends when *sampled* responses are right nearly as often as the written entries. The remaining errors are then
misconceptions, and hardly ever slips.

Stories begin with one transfer, and grow by a transfer whenever the loss is low. A policy learns from single transfers
within a minute that words can be copied from the story; from stories of eight transfers this takes an hour.
"""

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from openrlhf_shear.config.knobs import COUNT, POSITIVE, Knobs, knob
from openrlhf_shear.config.refusal import Refusal
from openrlhf_shear.kernels.bfloat16 import multiply_in_float32
from openrlhf_shear.tasks.arithmetic.policy import load_policy
from openrlhf_shear.tasks.arithmetic.sampling import Accuracy, sampled_checks
from openrlhf_shear.tasks.arithmetic.warm_up import MOST_STEPS, OPEN_SHARE, SEED, TARGET, WarmUpResult, train_step
from openrlhf_shear.tasks.bookkeeping.entries import EntryCheck
from openrlhf_shear.tasks.bookkeeping.forms import FORMS, PLAIN
from openrlhf_shear.tasks.bookkeeping.policy import SIZES, build_model, build_tokenizer, take_over
from openrlhf_shear.tasks.bookkeeping.stories import ACCOUNTS, make_problems
from openrlhf_shear.tasks.bookkeeping.task import BookkeepingTask

RISE = 50  # steps over which the learning rate rises
LEAST_RATE = 0.03  # fraction of the learning rate at the end of its decay
# nats a token, mean over about `MEMORY` steps: below it stories of the plain form grow; random choices alone cost 0.055
GROWS = 0.1
MEMORY = 20  # steps


@dataclass(frozen=True)
class WarmUpSettings(Knobs, section="warm_up"):
    """Settings of the warm-up.

    The learning rate stays high until stories have their full length, and then falls: with a high rate, slips remain.
    Only after its fall are responses sampled, and compared with the target.
    """

    seed: int = knob(0, SEED)
    target_accuracy: float = knob(
        0.34, f"{TARGET} Of the generated entries 0.365 are right (paraphrased: 0.49).", OPEN_SHARE
    )
    max_steps: int = knob(10_000, MOST_STEPS, COUNT)
    form: str = knob(
        PLAIN.name, "Plain, or paraphrased: eight templates, sixteen phrases, six transfers.", tuple(FORMS)
    )
    size: str = knob("small", "Small: 1.9M parameters; large: 5.1M.", tuple(SIZES))
    start: str | None = knob(
        None,
        "Folder of a policy of that size to start from, with stories of full length at once. Words that it lacks are "
        "added. Unset: random weights.",
    )
    batch_size: int = knob(12, "Stories of full length a step, or shorter stories with as many tokens.", COUNT)
    learning_rate: float = knob(1e-3, "Learning rate while stories grow.", POSITIVE)
    decay_steps: int = knob(
        3000, "Steps on full-length stories in which the rate falls; then responses are checked.", COUNT
    )
    evaluate_every: int = knob(100, "Steps between two looks at the policy.", COUNT)
    evaluation_problems: int = knob(256, "Problems of such a look.", COUNT)
    final_problems: int = knob(1024, "Held-out problems of the accuracy at the end.", COUNT)

    def conflicts(self) -> Iterator[Refusal]:
        if self.start and not (Path(self.start) / "config.json").is_file():
            yield self.refusal("start", "must be the folder of a policy, with config.json", "a warm-up's --out")


@dataclass(frozen=True)
class BookkeepingResult(WarmUpResult):
    """Result of a warm-up, with the errors of the sampled responses."""

    slips: float = 0.0  # fraction of the first errors that are not misconceptions

    @property
    def remark(self) -> str:
        return f"{self.slips:.1%} of the first errors are slips, the others misconceptions"


def warm_up(settings: WarmUpSettings, report: Callable[[str], None] = tqdm.write) -> BookkeepingResult:
    """Train until the sampled accuracy reaches the target, in bfloat16 on float32 weights; then round and measure."""
    multiply_in_float32()
    form = FORMS[settings.form]
    task = BookkeepingTask(form)
    tokenizer = build_tokenizer(form)
    model = build_model(tokenizer, settings.seed, settings.size)
    if settings.start:
        take_over(model, tokenizer, *load_policy(Path(settings.start)), form)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    stop_problems = task.problems(settings.evaluation_problems, settings.seed + 1)
    grows = GROWS + form.choice_nats - PLAIN.choice_nats
    rng, began = random.Random(settings.seed), time.perf_counter()
    reached, step, smooth = False, 0, 1.0
    longest, grown = (form.transfers, 0) if settings.start else (1, math.inf)
    with tqdm(total=settings.max_steps, desc="warm-up", unit="step") as bar:
        while step < settings.max_steps and not reached:
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * _rate(step, step - grown, settings.decay_steps)
            transfers = longest if longest == form.transfers or rng.random() < 0.5 else rng.randint(1, longest)
            full, each = (form.story_tokens(ACCOUNTS, length) for length in (form.transfers, transfers))
            problems = make_problems(settings.batch_size * full // each, rng.getrandbits(60), transfers=transfers)
            smooth += (train_step(model, tokenizer, optimizer, task, problems, rng) - smooth) / MEMORY
            if smooth < grows and longest < form.transfers:
                longest, smooth = longest + 1, 2 * grows  # so that stories do not grow again for some steps
                grown = step if longest == form.transfers else grown
            bar.set_postfix_str(f"loss {smooth:.4f}", refresh=False)
            bar.update()
            if step % settings.evaluate_every == 0:
                report(f"step {step}: loss {smooth:.4f}, up to {longest} transfers")
                if step - grown >= settings.decay_steps:
                    accuracy, slips = _measured(sampled_checks(model, tokenizer, task, stop_problems, settings.seed))
                    report(f"step {step}: sampled accuracy {accuracy.correct:.3f}, {slips:.0%} of the errors are slips")
                    reached = accuracy.correct >= settings.target_accuracy
    seconds = time.perf_counter() - began
    model = model.to(torch.bfloat16).eval()
    heldout = task.problems(settings.final_problems, settings.seed, "heldout")
    accuracy, slips = _measured(sampled_checks(model, tokenizer, task, heldout, settings.seed + 1))
    return BookkeepingResult(model, tokenizer, accuracy, step, seconds, reached, slips)


def _rate(step: int, since: float, decay_steps: int) -> float:
    """Return the fraction of the learning rate; `since` counts steps since stories reached their full length."""
    return min(1.0, step / RISE) * max(LEAST_RATE, 1 - max(0, since) / decay_steps)


def _measured(checks: list[EntryCheck]) -> tuple[Accuracy, float]:
    """Return the accuracy, and the fraction of the first errors that are slips."""
    errors = [result for result in checks if result.first_error is not None]
    slips = sum(not result.misconceived for result in errors)
    return Accuracy.of(checks), slips / max(len(errors), 1)
