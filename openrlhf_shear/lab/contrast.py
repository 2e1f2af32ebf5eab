"""Contrast of a rule's weights: late against early tokens of a rollout, and incorrect against correct rollouts.

    last_first  = mean weight of tokens t >= 3T/4 / mean weight of tokens t < T/4, over all rollouts of mixed groups
    wrong_right = mean over incorrect rollouts of their mean weight / the same of correct rollouts

Equal weights have 1 in both. SHEAR's paper reports mean distances of 0.67 and 0.75 in the first and last quartile of
prefix positions, which is 1.12.

Legend: T tokens of a rollout, P problems.
"""

from collections.abc import Sequence

import numpy as np

from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity
from openrlhf_shear.report.rows import problem_codes, ratio
from openrlhf_shear.rollouts.localisation import Trace

PAPER = 0.75 / 0.67


def contrast(traces: Sequence[Trace], bootstrap: Bootstrap) -> Analysis:
    """Return `last_first` and `wrong_right`, with intervals over problems; NaN without a token or rollout to compare.

    Args:
        traces: all rollouts of mixed groups.
    """
    problems, number = problem_codes([trace.group for trace in traces])
    parts = {name: np.zeros((2, number)) for name in ("first", "last", "right", "wrong")}  # sums and counts, (2, P)
    for problem, trace in zip(problems, traces, strict=True):
        weights = np.asarray(trace.weights, dtype=float)
        place = 4 * np.arange(len(weights))
        for name, some in (("first", place < len(weights)), ("last", place >= 3 * len(weights))):
            parts[name][:, problem] += weights[some].sum(), some.sum()
        if len(weights):
            parts["right" if trace.correct else "wrong"][:, problem] += weights.mean(), 1

    def quantity(name: str, above: str, below: str, needs: str, paper: float | None = None) -> Quantity:
        def statistic(drawn: np.ndarray) -> np.ndarray:
            means = (ratio(*(parts[part] @ drawn)) for part in (above, below))
            return ratio(*means)

        rows = parts[above][1] + parts[below][1]
        return Quantity(name, statistic, rows, needs, paper=paper)

    return bootstrap.estimates(
        [
            quantity("last_first", "last", "first", "a token with a positive weight", PAPER),
            quantity("wrong_right", "wrong", "right", "a correct rollout with a positive weight"),
        ]
    )
