"""Size of a rule's steps beside GRPO's, and a rule's gain over a GRPO whose steps are as large.

The size of a step is the KL divergence that its updates make. A rule that takes larger steps learns faster, wherever
its credit goes, as a larger learning rate does.
"""

from collections.abc import Mapping, Sequence
from math import log
from statistics import fmean

from openrlhf_shear.lab.worth import LabRun
from openrlhf_shear.report.estimates import Paired, paired

FIRST_STEPS = 10  # later steps have other policies, and so other problems left to learn


def step_kl(runs: Sequence[LabRun]) -> float:
    """Return the mean over runs of the KL divergence of a step, nats a token, over the first ten steps."""
    return fmean(fmean(run.metrics["kl"][:FIRST_STEPS]) for run in runs)


def over_equal_steps(
    runs: Sequence[LabRun], baselines: Mapping[float, Sequence[LabRun]], measure: str = "mean"
) -> Paired | None:
    """Return a rule's gain over the baseline at the learning rate whose steps have the rule's KL.

    The logarithm of the KL divergence, and each seed's accuracy, are linear in the logarithm of the rate between two
    rates of the baseline. None where no two rates, with all of the rule's seeds, have the
    rule's KL between theirs.

    Args:
        runs: of the rule.
        baselines: learning rate -> runs of the baseline.
        measure: attribute of a run.
    """
    by_rate = {rate: {run.seed: run for run in its} for rate, its in sorted(baselines.items())}
    for low, high in zip(by_rate, list(by_rate)[1:], strict=False):
        slower, faster = by_rate[low], by_rate[high]
        if not all(run.seed in slower and run.seed in faster for run in runs):
            continue
        sizes = [
            step_kl(each) for each in ([slower[run.seed] for run in runs], runs, [faster[run.seed] for run in runs])
        ]
        if 0 < sizes[0] <= sizes[1] <= sizes[2]:
            bottom, at, top = map(log, sizes)
            share = (at - bottom) / (top - bottom) if top > bottom else 0.0
            return paired(
                [
                    getattr(run, measure)
                    - (1 - share) * getattr(slower[run.seed], measure)
                    - share * getattr(faster[run.seed], measure)
                    for run in runs
                ]
            )
    return None
