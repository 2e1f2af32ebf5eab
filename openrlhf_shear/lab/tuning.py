"""The best learning rate of each rule, from seeds that judge nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from openrlhf_shear.lab.runs import LabJob, jobs
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import Variant
from openrlhf_shear.lab.worth import LabRun


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


def tuning_jobs(
    settings: LabSettings,
    variants: Sequence[Variant],
    rates: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    start: Path,
    identity: str,
    output: Path,
) -> list[LabJob]:
    """Return a job for every rule, each of its rates, and every seed; other arguments as for `runs.jobs`.

    Args:
        rates: to try, by the rule's name.
    """
    return [
        job
        for variant in variants
        for rate in rates[variant.name]
        for job in jobs(replace(settings, learning_rate=rate), [variant], seeds, start, identity, output)
    ]


def widened(rates: Sequence[float], best: float) -> list[float]:
    """Return the rates with one more, by a factor of two, beyond an end that is the best.

    >>> widened([1e-4, 2e-4], 2e-4), widened([1, 2, 4], 1), widened([1, 2, 4], 2)
    ([0.0001, 0.0002, 0.0004], [0.5, 1, 2, 4], [1, 2, 4])
    """
    return [*([best / 2] if best == rates[0] else []), *rates, *([best * 2] if best == rates[-1] else [])]


def best_rates(tuned: Sequence[LabJob], runs: Iterable[LabRun]) -> dict[str, float]:
    """Return each rule's best rate by its name: that of the largest mean score over the seeds; a tie takes the lower.

    A run's score is the mean of its evaluations or, without evaluations, its mean accuracy over the steps.

    Args:
        tuned: of `tuning_jobs`; `runs` are their results, in the same order.
    """
    scores: dict[str, dict[float, list[float]]] = {}
    for job, run in zip(tuned, runs, strict=True):
        score = run.mean if run.evaluated is None else run.evaluated
        scores.setdefault(job.variant.name, {}).setdefault(job.settings.learning_rate, []).append(score)
    return {name: max(sorted(by), key=lambda rate, by=by: fmean(by[rate])) for name, by in scores.items()}


def tuned_jobs(
    settings: LabSettings,
    variants: Sequence[Variant],
    rates: Mapping[str, float],
    seeds: Sequence[int],
    start: Path,
    identity: str,
    output: Path,
) -> list[LabJob]:
    """Return the jobs of `runs.jobs`, seed by seed, each rule at its own rate."""
    made = [
        jobs(replace(settings, learning_rate=rates[variant.name]), [variant], seeds, start, identity, output)
        for variant in variants
    ]
    return [job for of_a_seed in zip(*made, strict=True) for job in of_a_seed]
