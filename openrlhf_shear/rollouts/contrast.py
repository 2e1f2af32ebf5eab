"""How strongly token weights reweigh rollouts: the last quarter of a response over the first, wrong over right.

Weights of uniform size have a contrast of 1. It says how hard a rule reweighs, and not whether it is right to.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter

import numpy as np

from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity
from openrlhf_shear.report.rows import problem_codes, ratio, sums
from openrlhf_shear.rollouts.localisation import Trace

# The SHEAR paper, section "Theoretical Analysis", first assumption: mean distances of about 0.67 in the first quartile
# of prefix positions and 0.75 in the last. So 1.12 is a ratio of distances; the paper gives no contrast of omega.
PAPER_LAST_FIRST = 1.12


def contrast(traces: Iterable[Trace], bootstrap: Bootstrap) -> Analysis:
    """Return two ratios of mean weights. A mean is over rollouts, of each rollout's mean over its tokens.

    last_first: tokens in the last quarter of a response over those in the first. Token t of T is in the first quarter
        if (t + 1/2) / T <= 1/4, and in the last if it is >= 3/4. A response of a single token has neither.
    wrong_right: all tokens of incorrect rollouts over all tokens of correct rollouts.

    Args:
        traces: rollouts of mixed groups, as `traces_of` returns them.

    Example: (2 + 7) / (1 + 3) = 2.25, and 5 / 2.

    >>> rollouts = [Trace("a", True, [1, 2, 3, 2], None), Trace("a", False, [3, 5, 5, 7], None)]
    >>> [each.value for each in contrast(rollouts, Bootstrap(1)).values()]
    [2.25, 2.5]
    """
    traces = [trace for trace in traces if len(trace.weights)]
    problems, number = problem_codes([trace.group for trace in traces])
    first, last, mean = np.array([_means(trace.weights) for trace in traces]).reshape(-1, 3).T
    wrong = np.array([not trace.correct for trace in traces], dtype=int)
    both = np.where(np.isfinite(first), 0, -1)
    cells = ((both, first, 1), (both, last, 1), (wrong, mean, 2))  # which cell, its values, number of cells
    counts, totals = (
        np.hstack([sums(problems, at, values if summed else None, (number, n)) for at, values, n in cells])
        for summed in (False, True)
    )

    def ratios(weights: np.ndarray) -> dict[str, np.ndarray]:
        first, last, right, wrong = ratio(weights @ totals, weights @ counts)
        return {"last_first": ratio(last, first), "wrong_right": ratio(wrong, right)}

    needs, ends = "responses of two tokens or more", "Contrast of omega: last over first quarter of a response"
    sides = "Contrast of omega: wrong over right rollouts"
    quantities = [
        Quantity("last_first", itemgetter("last_first"), counts[:, 0], needs, None, PAPER_LAST_FIRST, ends),
        Quantity("wrong_right", itemgetter("wrong_right"), counts[:, 2:].sum(axis=1), "both outcomes", what=sides),
    ]
    return bootstrap.estimates(quantities, ratios)


def _means(weights: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean weights of the first quarter, of the last, and of all tokens; NaN for an empty quarter."""
    weights = np.asarray(weights, dtype=float)
    place = (np.arange(len(weights)) + 0.5) / len(weights)
    quarters = (weights[place <= 0.25], weights[place >= 0.75])
    return (*(float(part.mean()) if len(part) else np.nan for part in quarters), float(weights.mean()))
