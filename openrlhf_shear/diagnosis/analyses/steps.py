"""Appendix H: does omega follow 1 - PRM(t), a process reward model's probability that a step is wrong?"""

from collections.abc import Iterable
from functools import partial

import numpy as np
import pandas

from openrlhf_shear.report.bootstrap import Analysis, Bootstrap
from openrlhf_shear.report.rows import Rows, not_alone
from openrlhf_shear.rollouts.record import Rollout


def omega_and_scores(steps: pandas.DataFrame, rollouts: Iterable[Rollout], bootstrap: Bootstrap) -> Analysis:
    """Return Spearman's rho of a step's mean omega and 1 - its score; the paper says that the two go together.

    Each is over all steps, and over those of originally correct and of originally incorrect rollouts:

    rho, rho_correct, rho_incorrect: ranks within a rollout. Omega rises along any rollout and scores fall, so this
        tracks the position too.
    rho_matched, ...: ranks among steps of the same number, of rollouts of the same problem and outcome.

    Args:
        steps: problem, sample, step, first, last (tokens), score in [0, 1].
        rollouts: with weights; steps of other rollouts are left out.
    """
    weighed = {(r.group, r.sample): r for r in rollouts if r.weights and np.isfinite(r.span_distances or [0]).all()}
    keys = list(zip(steps["problem"], steps["sample"], strict=True))
    steps = steps[np.array([key in weighed for key in keys], dtype=bool)].reset_index(drop=True)
    own = [weighed[key] for key in keys if key in weighed]
    spans = zip(own, steps["first"], steps["last"], strict=True)
    rows = Rows(
        steps.assign(
            correct=[bool(rollout.correct) for rollout in own],
            omega=np.array([np.mean(r.weights[first : last + 1]) for r, first, last in spans], dtype=float),
            doubt=1 - steps["score"],
        )
    )
    kinds = {
        "rho": (("problem", "sample"), "within a rollout"),
        "rho_matched": (("problem", "correct", "step"), "at the same step"),
    }
    of = partial(rows.rho, columns=("omega", "doubt"), needs="steps with other weights and other scores")
    text, quantities = "rho of omega and 1 - PRM score", []
    for name, (keys, where) in kinds.items():
        strata = rows.strata(*keys)
        for outcome, (part, whose) in rows.outcomes().items():
            quantities.append(of(name + outcome, not_alone(part, strata), strata, what=f"{text} {where}{whose}"))
    return bootstrap.estimates(quantities)
