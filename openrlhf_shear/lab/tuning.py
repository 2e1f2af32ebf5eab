"""The best learning rate of each rule, from seeds that judge nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from openrlhf_shear.lab.runs import LabJob, jobs, run_all
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.trials import Tuning, widened
from openrlhf_shear.lab.variants import Variant
from openrlhf_shear.lab.worth import LabRun


def tuned(
    trials: Tuning,
    settings: LabSettings,
    variants: Sequence[Variant],
    start: Path,
    identity: str,
    output: Path,
    train: bool,
) -> dict[str, float]:
    """Train what is missing of the tuning, print its scores, and return each rule's best rate by its name.

    Without rates to try, that is the rate of `settings`. Other arguments are as for `runs.jobs`.

    Raises ValueError: runs are missing, and `train` is False.
    """
    if not trials.rates:
        return {variant.name: settings.learning_rate for variant in variants}
    ranges = {variant.name: trials.rates for variant in variants}
    for widenings_left in reversed(range(trials.widen_rates + 1)):
        wanted = [
            job
            for variant in variants
            for rate in ranges[variant.name]
            for job in jobs(replace(settings, learning_rate=rate), [variant], trials.tuning, start, identity, output)
        ]
        missing = sum(not job.path.is_file() for job in wanted)
        if missing and not train:
            raise ValueError(f"the tuning lacks {missing} runs, and this command trains nothing")
        best = best_rates(wanted, run_all(wanted, trials.workers))
        wider = {name: widened(ranges[name], rate) for name, rate in best.items()}
        if not widenings_left or wider == ranges:
            break
        ranges = wider
    for name, rate in best.items():
        tried = ",".join(f"{each:g}" for each in ranges[name])
        print(f"{name}: learning rate {rate:g}, the best of {tried} on {trials.tuning_seeds} seeds")
    return best


def best_rates(wanted: Sequence[LabJob], runs: Iterable[LabRun]) -> dict[str, float]:
    """Return each rule's best rate by its name: that of the largest mean score over the seeds; a tie takes the lower.

    A run's score is the mean of its evaluations or, without evaluations, its mean accuracy over the steps.

    Args:
        wanted: the jobs; `runs` are their results, in the same order.
    """
    scores: dict[str, dict[float, list[float]]] = {}
    for job, run in zip(wanted, runs, strict=True):
        score = run.mean if run.evaluated is None else run.evaluated
        scores.setdefault(job.variant.name, {}).setdefault(job.settings.learning_rate, []).append(score)
    return {name: max(sorted(by), key=lambda rate, by=by: fmean(by[rate])) for name, by in scores.items()}
