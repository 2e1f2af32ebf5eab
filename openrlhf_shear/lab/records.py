"""What one training run in the lab leaves behind; everything that is said of a rule's worth is computed from these."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from statistics import fmean


@dataclass(frozen=True)
class Run:
    """One rule trained with one seed; the seed fixes the problems and the sampling seeds, whatever the rule.

    Attributes:
        rule: the variant's name, such as "shear/window=4/stride=1" or "shear/matched".
        accuracy: of the rollouts of each step, before its update; fractions, one a step.
        final: accuracy on held-out problems after the last step, a fraction.
        metrics: further numbers, one a step, such as "negative_credit"; NaN where a step has none.
        seconds: that the run took.

    Raises:
        ValueError: there is no step, or an accuracy is not finite.
    """

    rule: str
    seed: int
    accuracy: tuple[float, ...]
    final: float
    metrics: dict[str, tuple[float, ...]]
    seconds: float

    def __post_init__(self) -> None:
        if not self.accuracy:
            raise ValueError(f"{self.rule}, seed {self.seed}: a run must have at least one step")
        if not all(map(isfinite, (*self.accuracy, self.final))):
            raise ValueError(f"{self.rule}, seed {self.seed}: accuracies must be finite")

    @property
    def mean(self) -> float:
        """Mean accuracy over the steps."""
        return fmean(self.accuracy)
