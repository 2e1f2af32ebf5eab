"""What a credit rule is worth: differences between runs that share a seed, and so the problems and sampling seeds.

Intervals are those of the paired t test over seeds, for seeds drawn anew (and the held-out problems as they are).
Accuracies and their differences are fractions, not percent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from operator import attrgetter
from statistics import fmean

import numpy as np

from openrlhf_shear.report.estimates import Paired, Stat, paired, stat


@dataclass(frozen=True)
class Run:
    """One rule trained with one seed; the seed fixes the problems and the sampling seeds, whatever the rule. ValueError
    where there is no step, or an accuracy is not finite.
    """

    rule: str  # the variant's name, such as "shear/window=4/stride=1" or "shear/matched"
    seed: int
    accuracy: tuple[float, ...]  # of the rollouts of each step, before its update; fractions, one a step
    final: float  # accuracy on held-out problems after the last step, a fraction
    # further numbers, one a step, such as "negative_credit"; NaN where a step has none
    metrics: dict[str, tuple[float, ...]]
    seconds: float  # that the run took

    def __post_init__(self) -> None:
        if not self.accuracy:
            raise ValueError(f"{self.rule}, seed {self.seed}: a run must have at least one step")
        if not all(map(isfinite, (*self.accuracy, self.final))):
            raise ValueError(f"{self.rule}, seed {self.seed}: accuracies must be finite")

    @property
    def mean(self) -> float:
        """Mean accuracy over the steps."""
        return fmean(self.accuracy)


MEASURES = attrgetter("final"), attrgetter("mean")  # of a run: on held-out problems at the end, over the steps


@dataclass(frozen=True)
class Versus:
    """A rule's accuracies minus those of the rule `against`."""

    against: str
    final: Paired
    mean: Paired


@dataclass(frozen=True)
class Worth:
    """A rule's accuracies over its seeds (mean, sample std, number), and its paired differences to others."""

    rule: str
    seeds: tuple[int, ...]
    final: Stat
    mean: Stat  # of the mean accuracy over the steps
    metrics: dict[str, Stat]  # of the mean over the steps that have a number
    # "baseline", "matched", "shuffled", "shear" -> the difference, where such runs share seeds with the rule's. Matched
    # and shuffled are the rule's own controls, RULE/matched and RULE/shuffled. "shear" is left out where it would say
    # another row's difference once more, with the other sign
    against: dict[str, Versus]


def worths(runs: Iterable[Run], baseline: str = "uniform") -> list[Worth]:
    """One a rule, in the order in which the rules first appear; ValueError where a seed that a rule has twice; runs of
    a pair that differ in their steps.
    """
    runs = list(runs)
    rules = dict.fromkeys(run.rule for run in runs)
    return [_worth(runs, rule, _references(rule, baseline, rules)) for rule in rules]


def _worth(runs: list[Run], rule: str, references: dict[str, str]) -> Worth:
    mine = _by_seed(runs, rule)
    against = {}
    for role, other in references.items():
        pairs = _pairs(runs, rule, other)
        if pairs:
            final, mean = (paired([value(run) - value(its) for run, its in pairs]) for value in MEASURES)
            against[role] = Versus(other, final, mean)
    names = dict.fromkeys(name for run in mine.values() for name in run.metrics)
    metrics = {name: stat(_step_means(mine.values(), name)) for name in names}
    metrics = {name: over_seeds for name, over_seeds in metrics.items() if over_seeds}
    final, mean = (stat(map(value, mine.values())) for value in MEASURES)
    return Worth(rule, tuple(mine), final, mean, metrics, against)


def _references(rule: str, baseline: str, rules: Iterable[str]) -> dict[str, str]:
    others = {"baseline": baseline, "matched": f"{rule}/matched", "shuffled": f"{rule}/shuffled", "shear": "shear"}
    if rule in (baseline, "shear/matched", "shear/shuffled") or baseline == "shear":
        del others["shear"]
    return {role: other for role, other in others.items() if other in rules and other != rule}


def _step_means(runs: Iterable[Run], metric: str) -> list[float]:
    held = [[value for value in run.metrics.get(metric, ()) if isfinite(value)] for run in runs]
    return [fmean(values) for values in held if values]


@dataclass(frozen=True)
class Block:
    """Accuracy over steps first..last (counted from 1): the rule's mean, the baseline's, and their difference."""

    first: int
    last: int
    mean: float
    baseline: float
    difference: Paired


def curve(runs: Iterable[Run], rule: str, baseline: str, block: int = 5) -> list[Block]:
    """The learning curve in blocks of `block` steps, the last one maybe shorter; empty if the rules share no seed.

    Both means are over the seeds that both rules have.

    Raises:
        ValueError: block is below 1, or as `worths` does; pairs that differ in their steps among themselves.
    """
    if block < 1:
        raise ValueError(f"block must be at least 1: got {block}; use the number of steps to average, e.g. 5")
    pairs = _pairs(runs, rule, baseline)
    if not pairs:
        return []
    mine, others = (np.array([pair[side].accuracy for pair in pairs]) for side in (0, 1))
    blocks = []
    for start in range(0, mine.shape[1], block):
        one, other = (table[:, start : start + block].mean(axis=1) for table in (mine, others))
        last = min(start + block, mine.shape[1])
        blocks.append(Block(start + 1, last, float(one.mean()), float(other.mean()), paired(one - other)))
    return blocks


def _pairs(runs: Iterable[Run], rule: str, against: str) -> list[tuple[Run, Run]]:
    """By seed, of the seeds that both have."""
    runs = list(runs)
    mine, others = _by_seed(runs, rule), _by_seed(runs, against)
    pairs = [(run, others[seed]) for seed, run in mine.items() if seed in others]
    steps = {len(run.accuracy) for pair in pairs for run in pair}
    if len(steps) > 1:
        raise ValueError(f"runs of {rule} and {against} must have as many steps: got {sorted(steps)}")
    return pairs


def _by_seed(runs: Iterable[Run], rule: str) -> dict[int, Run]:
    own: dict[int, Run] = {}
    for run in runs:
        if run.rule == rule:
            if run.seed in own:
                raise ValueError(f"{rule} has seed {run.seed} twice; a pair must be one run of each rule")
            own[run.seed] = run
    return dict(sorted(own.items()))
