"""All settings of the lab: of its task and trainer, of seeds and learning rates, and of the credit bench's tracks."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from openrlhf_shear.config.knobs import COUNT, NOT_NEGATIVE, POSITIVE, Knobs, Range, knob
from openrlhf_shear.config.refusal import Refusal

SHIPPED = "shipped"
TRIED = 900  # seeds from here on tune learning rates and try new rules; they judge nothing
TASKS = ("arithmetic", "bookkeeping", "bookkeeping-paraphrased")
# These do not decide a run without its rule: the first three are knobs of rules, the last is of the placement.
_NOT_OF_A_RUN = ("window", "stride", "epsilon_rel", "placement_prompts")


@dataclass(frozen=True)
class LabSettings(Knobs, section="lab"):
    """The setting in which every rule is tried.

    Batch, learning rate and clipping default to those of `examples/scripts/train_shear_arithmetic.sh`. Unlike that
    script, the lab needs no correction between sampler and trainer: they are the same model here. Raises ValueError
    where a value is out of its range.
    """

    task: str = knob(
        TASKS[0],
        "The policy's task: chain arithmetic, or keeping the books of a story in one wording or in many.",
        TASKS,
    )
    operations: int = knob(7, "Arithmetic steps of a problem; the shipped start policy knows 7.", Range(2, 12))
    start: str = knob(
        SHIPPED,
        "Start policy: shipped, or a folder from openrlhf_shear.cli.warm_up.",
    )
    prompts: int = knob(16, "Problems a training step.", COUNT)
    samples_per_prompt: int = knob(
        8, "Rollouts a problem: the group size.", Range(2, remedy="e.g. 8: groups are compared")
    )
    steps: int = knob(60, "Training steps.", COUNT)
    mini_batches: int = knob(2, "Updates a step; each reads an equal part of the step's rollouts.", COUNT)
    learning_rate: float = knob(
        1e-4, "AdamW's, constant; betas 0.9 and 0.95, no weight decay, as in OpenRLHF.", POSITIVE
    )
    clip_low: float = knob(0.2, "The ratio is clipped to at least 1 minus this.", POSITIVE)
    clip_high: float = knob(0.28, "The ratio is clipped to at most 1 plus this.", POSITIVE)
    max_grad_norm: float = knob(1.0, "Gradients are clipped to this norm.", POSITIVE)
    eval_problems: int = knob(768, "Held-out problems of the final accuracy.", COUNT)
    eval_samples: int = knob(4, "Responses to each held-out problem.", COUNT)
    eval_every: int = knob(
        0, "Also evaluate after every so many steps of training; 0 for the final accuracy alone.", Range(0)
    )
    eval_temperature: float = knob(
        1.0, "Temperature of the evaluations' responses, e.g. 0.1; training samples at 1.", POSITIVE
    )
    precision: str = knob(
        "bfloat16",
        "Precision of the policy's passes; its weights are updated in float32, as by DeepSpeed.",
        ("bfloat16", "float32"),
    )
    window: int = knob(16, "Span length, in tokens, of rules that measure distances and name no length.", COUNT)
    stride: int = knob(4, "Distance between the starts of their spans, in tokens.", COUNT)
    epsilon_rel: float = knob(0.03, "Their entropic regularisation, in units of the mean hidden-state norm.", POSITIVE)
    placement_prompts: int = knob(64, "Problems whose rollouts by the start policy show where the credit goes.", COUNT)

    def conflicts(self) -> Iterator[Refusal]:
        rollouts = self.prompts * self.samples_per_prompt
        if self.eval_every > self.steps:
            yield self.refusal("eval_every", f"must be 0 to {self.steps}, the steps", "e.g. 5")
        if rollouts % self.mini_batches:
            yield self.refusal("mini_batches", f"must divide {rollouts} rollouts", "e.g. 2")

    def of_a_run(self) -> dict:
        """Return the changed settings that decide a run apart from its rule; `start` is a name, not the content.

        A new setting does not change the identity of runs at its default. If a default changes, raise `runs.VERSION`.
        """
        return {name: value for name, value in self.changed().items() if name not in _NOT_OF_A_RUN}


BASELINE = "uniform"
_BOOKKEEPING = LabSettings(  # as in docs/bookkeeping.md
    task="bookkeeping",
    prompts=8,
    steps=20,
    eval_problems=256,
    window=32,
    stride=8,
    epsilon_rel=0.015,
    placement_prompts=16,
)
TRACKS = {
    "arithmetic": LabSettings(steps=30, eval_problems=384, placement_prompts=16),
    "bookkeeping": _BOOKKEEPING,
    "bookkeeping-paraphrased": replace(_BOOKKEEPING, task="bookkeeping-paraphrased"),
}
QUICK = ("arithmetic", "bookkeeping")  # the tasks of a row unless others are asked for
SEEDS = {
    "arithmetic": range(5),
    "bookkeeping": range(14),
    "bookkeeping-paraphrased": range(14),
}  # of a row, all of them


@dataclass(frozen=True)
class Tuning(Knobs, section="lab"):
    """How each rule's learning rate is tuned, and on how many cores."""

    workers: int = knob(len(os.sched_getaffinity(0)), "Parallel runs, by default one a core.", COUNT)
    learning_rates: str | None = knob(
        None, "Rates to try for every rule, e.g. 5e-5,1e-4,2e-4; each then trains at its best."
    )
    tuning_seeds: int = knob(3, "Seeds of the tuning, which judge nothing.", COUNT)
    first_tuning_seed: int = knob(TRIED, "First of the tuning's consecutive seeds; smaller seeds judge.", Range(TRIED))
    widen_rates: int = knob(
        0, "Times that a rule's rates grow by a factor of two where its best is an end of them.", NOT_NEGATIVE
    )

    def conflicts(self) -> Iterator[Refusal]:
        """Yield what is wrong between the knobs; ValueError for rates that are no positive numbers."""
        if self.rates is None:
            for name in {*self.changed()} & {"tuning_seeds", "first_tuning_seed", "widen_rates"}:
                yield self.refusal(name, "needs --learning-rates, the rates to try", "e.g. --learning-rates 1e-4,2e-4")

    @property
    def rates(self) -> list[float] | None:
        """The learning rates to try; None without tuning."""
        return None if self.learning_rates is None else parse_rates(self.learning_rates)

    @property
    def tuning(self) -> range:
        return range(self.first_tuning_seed, self.first_tuning_seed + self.tuning_seeds)


@dataclass(frozen=True)
class Trials(Tuning):
    """`Tuning`, and the seeds of a comparison."""

    seeds: int = knob(10, "Training runs a rule; 0 trains nothing and reads the finished runs.", NOT_NEGATIVE)
    first_seed: int = knob(0, "First of the consecutive seeds.", NOT_NEGATIVE)

    def conflicts(self) -> Iterator[Refusal]:
        yield from super().conflicts()
        if self.rates and {*self.tuning} & {*self.judging}:
            first = max(TRIED, self.judging[-1] + 1)
            yield self.refusal("first_tuning_seed", "makes a seed tune and judge", f"e.g. {first}")

    @property
    def judging(self) -> range:
        """The seeds that judge; the first one if nothing is trained."""
        return range(self.first_seed, self.first_seed + max(self.seeds, 1))


def parse_rates(text: str, flag: str = "--learning-rates") -> list[float]:
    """Return the learning rates of a flag's comma-separated list, ascending.

    >>> parse_rates("2e-4,1e-4")
    [0.0001, 0.0002]

    Raises ValueError: a part is no positive number, or is there twice.
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        rates = sorted(map(float, parts))
    except ValueError:
        rates = []
    if not rates or not 0 < rates[0] <= rates[-1] < float("inf") or len(set(rates)) < len(rates):
        raise ValueError(f"{flag} must be different positive numbers: got {text!r}; use e.g. 5e-5,1e-4,2e-4")
    return rates


def widened(rates: Sequence[float], best: float) -> list[float]:
    """Return the rates with one more, by a factor of two, beyond an end that is the best.

    >>> widened([1e-4, 2e-4], 2e-4), widened([1, 2, 4], 1), widened([1, 2, 4], 2)
    ([0.0001, 0.0002, 0.0004], [0.5, 1, 2, 4], [1, 2, 4])
    """
    return [*([best / 2] if best == rates[0] else []), *rates, *([best * 2] if best == rates[-1] else [])]
