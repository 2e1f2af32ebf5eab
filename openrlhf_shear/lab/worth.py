"""Differences between credit rules: runs are paired by seed, which fixes the problems and the sampling seeds.

Intervals are those of the paired t test over seeds: for fresh seeds and the same held-out problems. Accuracies and
their differences are fractions, not percent.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log
from statistics import fmean

import numpy as np

from openrlhf_shear.report.bootstrap import Analysis, parts
from openrlhf_shear.report.estimates import Paired, Stat, paired, stat

MEASURES = ("final", "mean")  # of a run: accuracy on held-out problems at the end; mean accuracy over the steps
BLOCK = 5  # steps of a block of a learning curve
EVALUATED = "evaluated"  # of a run with evaluations: their mean
FIRST_STEPS = 10  # of `step_kl`; later steps have other policies, and so other problems left to learn


@dataclass(frozen=True)
class LabRun:
    """One rule trained with one seed; the seed fixes the problems and the sampling seeds for every rule.

    Raises ValueError where there is no step, or an accuracy is not finite.
    """

    rule: str  # the variant's name, such as "shear/window=4/stride=1" or "shear/matched"
    seed: int
    accuracy: tuple[float, ...]  # fraction correct of each step's rollouts, before the step's update
    final: float  # accuracy on held-out problems after the last step, a fraction
    metrics: dict[str, tuple[float, ...]]  # further numbers of each step, e.g. "negative_credit"; NaN where undefined
    seconds: float  # of the whole run
    made: Mapping | None = None  # its `report.provenance`; None where none was written
    evaluations: tuple[float, ...] = ()  # accuracies after every `eval_every` steps; empty without evaluations

    def __post_init__(self) -> None:
        if not self.accuracy:
            raise ValueError(f"{self.rule}, seed {self.seed}: a run must have at least one step")
        if not all(map(isfinite, (*self.accuracy, self.final, *self.evaluations))):
            raise ValueError(f"{self.rule}, seed {self.seed}: accuracies must be finite")

    @property
    def mean(self) -> float:
        """Mean accuracy over the steps."""
        return fmean(self.accuracy)

    @property
    def evaluated(self) -> float | None:
        """Mean of the evaluations; None without evaluations."""
        return fmean(self.evaluations) if self.evaluations else None


@dataclass(frozen=True)
class Worth:
    """A rule's accuracies over its seeds (mean, sample std, number), and its paired differences to others."""

    rule: str
    seeds: tuple[int, ...]
    final: Stat
    mean: Stat  # of the mean accuracy over the steps
    metrics: dict[str, Stat]  # over seeds, of the mean over the steps that have a number
    evaluated: Stat | None  # of the mean of the evaluations; None where a run has none
    # role ("baseline", "matched", "shuffled", "shear") -> `against`, the other rule, and the `Paired` differences
    # `final`, `mean` and, with evaluations, `evaluated`, where the two share seeds. Matched and shuffled are the rule's
    # own controls. "shear" is left out where it would repeat another row's difference with the other sign
    against: dict[str, Analysis]


def worths(runs: Iterable[LabRun], baseline: str = "uniform") -> list[Worth]:
    """Return the worth of each rule, in the order in which the rules first appear.

    Raises ValueError where a rule has a seed twice, or the runs of a pair differ in their number of steps.
    """
    runs = list(runs)
    return [_worth(runs, rule, baseline) for rule in dict.fromkeys(run.rule for run in runs)]


def _worth(runs: list[LabRun], rule: str, baseline: str) -> Worth:
    others = {"baseline": baseline, "matched": f"{rule}/matched", "shuffled": f"{rule}/shuffled", "shear": "shear"}
    if rule in (baseline, "shear/matched", "shear/shuffled") or baseline == "shear":
        del others["shear"]
    against = {}
    for role, other in others.items():
        pairs = _pairs(runs, rule, other) if other != rule else []
        if pairs:
            shared = measures_of(run for pair in pairs for run in pair)
            differences = {of: paired([getattr(run, of) - getattr(its, of) for run, its in pairs]) for of in shared}
            against[role] = Analysis({"against": other, **differences})
    mine = _by_seed(runs, rule)
    final, mean = (stat(getattr(run, of) for run in mine.values()) for of in MEASURES)
    names = dict.fromkeys(name for run in mine.values() for name in run.metrics)
    metrics = {name: over_seeds for name in names if (over_seeds := stat(_step_means(mine.values(), name)))}
    evaluated = stat(run.evaluated for run in mine.values()) if EVALUATED in measures_of(mine.values()) else None
    return Worth(rule, tuple(mine), final, mean, metrics, evaluated, against)


def measures_of(runs: Iterable[LabRun]) -> tuple[str, ...]:
    """Return the measures that all of these runs have."""
    evaluations = [run.evaluations for run in runs]
    return (*MEASURES, EVALUATED) if evaluations and all(evaluations) else MEASURES


def _step_means(runs: Iterable[LabRun], metric: str) -> list[float]:
    held = [[value for value in run.metrics.get(metric, ()) if isfinite(value)] for run in runs]
    return [fmean(values) for values in held if values]


def curve(runs: Iterable[LabRun], rule: str, baseline: str) -> list[Analysis]:
    """Return the learning curve in blocks of `BLOCK` steps (the last may be shorter); empty if no seed is shared.

    Each block has the steps `first`..`last` (counted from 1), the rule's `mean` accuracy, the `baseline`'s, both over
    the shared seeds, and their `Paired` `difference`.

    Raises ValueError: a rule has a seed twice, or pairs differ in their number of steps.
    """
    pairs = _pairs(runs, rule, baseline)
    if not pairs:
        return []
    steps = len(pairs[0][0].accuracy)
    starts = range(0, steps, BLOCK)
    tables = (np.array([pair[side].accuracy for pair in pairs]) for side in (0, 1))
    mine, others = ([table[:, at : at + BLOCK].mean(axis=1) for at in starts] for table in tables)
    return parts(
        first=[at + 1 for at in starts],
        last=[min(at + BLOCK, steps) for at in starts],
        mean=[float(accuracies.mean()) for accuracies in mine],
        baseline=[float(accuracies.mean()) for accuracies in others],
        difference=[paired(own - other) for own, other in zip(mine, others, strict=True)],
    )


def _pairs(runs: Iterable[LabRun], rule: str, against: str) -> list[tuple[LabRun, LabRun]]:
    """Return the pairs of runs, by seed, of the seeds that both rules have."""
    runs = list(runs)
    mine, others = _by_seed(runs, rule), _by_seed(runs, against)
    pairs = [(run, others[seed]) for seed, run in mine.items() if seed in others]
    steps = {len(run.accuracy) for pair in pairs for run in pair}
    if len(steps) > 1:
        raise ValueError(f"runs of {rule} and {against} must have as many steps: got {sorted(steps)}")
    return pairs


def _by_seed(runs: Iterable[LabRun], rule: str) -> dict[int, LabRun]:
    own: dict[int, LabRun] = {}
    for run in runs:
        if run.rule == rule:
            if run.seed in own:
                raise ValueError(f"{rule} has seed {run.seed} twice; a pair must be one run of each rule")
            own[run.seed] = run
    return dict(sorted(own.items()))


def step_kl(runs: Sequence[LabRun]) -> float:
    """Return the mean over runs of the KL divergence of a step, nats a token, over the first ten steps."""
    return fmean(map(_step_kl, runs))


def _step_kl(run: LabRun) -> float:
    return fmean(run.metrics["kl"][:FIRST_STEPS])


def over_equal_steps(
    runs: Sequence[LabRun], curve: Mapping[float, Sequence[LabRun]], measure: str = "mean", of_baseline: bool = False
) -> Paired | None:
    """Return a rule's gain over the baseline where the steps of both have the same KL.

    A rule that takes larger steps learns faster, wherever its credit goes, as a larger learning rate does. The
    logarithm of the KL divergence, and the accuracy, are linear in the logarithm of the rate between two rates of the
    curve. None where no two rates, with all of the runs' seeds, have the runs' KL between theirs.

    The interval counts the noise of the KL divergences too, by the delta method. A seed's difference has the part by
    which its three divergences move the place on the curve; these parts have the mean 0.

    Args:
        runs: at one rate.
        curve: learning rate -> runs of the other side, the baseline.
        measure: attribute of a run.
        of_baseline: `runs` are the baseline's, and the curve is the rule's own.
    """
    sign = -1 if of_baseline else 1
    by_rate = {rate: {run.seed: run for run in its} for rate, its in sorted(curve.items())}
    for slower, faster in itertools.pairwise(by_rate.values()):
        if not all(run.seed in slower and run.seed in faster for run in runs):
            continue
        arms = [[slower[run.seed] for run in runs], runs, [faster[run.seed] for run in runs]]
        kl = np.array([[_step_kl(run) for run in arm] for arm in arms])
        low, own, high = np.array([[getattr(run, measure) for run in arm] for arm in arms])
        bottom, at, top = kl.mean(axis=1)
        if 0 < bottom <= at <= top:
            width = log(top / bottom) or 1.0
            share = log(at / bottom) / width
            below, itself, above = kl / kl.mean(axis=1, keepdims=True) - 1  # of the logarithm of a mean, seed by seed
            moved = (itself - (1 - share) * below - share * above) / width
            gains = own - low - share * (high - low) - moved * (high - low).mean()
            return paired((sign * gains).tolist())
    return None
