"""Where a rule puts the credit: its weights on rollouts whose errors are known.

Two measures beyond the diagnosis' (`FirstErrors`). Rules may treat correct and incorrect rollouts apart, and then
comparing tokens of both at the same index says which rollout a token is from rather than whether it is wrong: uniform
credit on another scale does as well; and a group whose weights are all large may be one whose errors come early. So
that AUC is also taken within the incorrect rollouts of a group. And a rule that picks out few tokens has no AUC worth
the name: how much of its blame is near the error is measured instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.rollouts.localisation import (
    FirstErrors,
    first_errors,
    measurable,
    rollout_means,
    tokens_auc,
)
from openrlhf_shear.rollouts.traces import Trace

RADIUS = 8  # tokens on both sides of the first error in profiles
NEAR = 1  # tokens


@dataclass(frozen=True)
class Placement:
    """Where the weights of a rule are.

    Attributes:
        errors: AUC and largest weight at the first error, with controls, and the profile.
        auc_incorrect: AUC of tokens at the same index of incorrect rollouts of the same group, already wrong against
            still right.
        share: of an incorrect rollout's credit, what its tokens within `NEAR` of the first error have; of weights of
            both signs, of their sizes; 0 of a rollout without credit.
    """

    errors: FirstErrors
    auc_incorrect: Estimate
    share: Estimate


def placement(traces: Sequence[Trace], bootstrap: Bootstrap) -> Placement:
    """How well the weights of the rollouts of mixed groups find the first errors; intervals over problems."""
    wrong = measurable(traces)
    shares = [[_share(trace)] for trace in wrong]
    return Placement(
        first_errors(traces, RADIUS, bootstrap),
        tokens_auc([trace for trace in traces if not trace.correct], True, bootstrap, within_groups=True),
        rollout_means(wrong, shares, {"share": 1.0}, bootstrap)["share"],
    )


def _share(trace: Trace) -> float:
    weights = np.abs(trace.weights)
    near = weights[max(trace.first_error - NEAR, 0) : trace.first_error + NEAR + 1]
    return near.sum() / weights.sum() if weights.sum() > 0 else 0.0
