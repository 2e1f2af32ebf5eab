"""Which seeds train, which tune each rule's learning rate, and the quick tracks of the credit bench."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from openrlhf_shear.config.knobs import COUNT, NOT_NEGATIVE, Knobs, Range, knob
from openrlhf_shear.config.refusal import Refusal
from openrlhf_shear.lab.settings import TRIED, LabSettings

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


def parse_rates(text: str) -> list[float]:
    """Return the learning rates of a comma-separated list, ascending.

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
        raise ValueError(f"--learning-rates must be different positive numbers: got {text!r}; use e.g. 5e-5,1e-4,2e-4")
    return rates


def widened(rates: Sequence[float], best: float) -> list[float]:
    """Return the rates with one more, by a factor of two, beyond an end that is the best.

    >>> widened([1e-4, 2e-4], 2e-4), widened([1, 2, 4], 1), widened([1, 2, 4], 2)
    ([0.0001, 0.0002, 0.0004], [0.5, 1, 2, 4], [1, 2, 4])
    """
    return [*([best / 2] if best == rates[0] else []), *rates, *([best * 2] if best == rates[-1] else [])]
