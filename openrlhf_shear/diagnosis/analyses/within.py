"""Is it the problem and not the prefix? Distance and accuracy compared within problems.

The distance is a minimum over the spans of all opposing rollouts, so the more of them there are, the smaller it is; and
how many there are is the accuracy of the group. Correct rollouts of an easy problem oppose few incorrect ones: a large
distance and a high accuracy. Incorrect rollouts of a hard problem mirror that. So pooled over problems the two
outcomes have a rho of distance and accuracy, of opposite sign, even if the distance knows nothing of a prefix.

The control ranks prefixes among those of the same problem at the same position. Those of one outcome have the very same
opposing rollouts; those of both do not, which leaves some of the confound in `rho`.

Legend: N prefixes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.rows import Rows
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.rollouts.record import Rollout


@dataclass(frozen=True)
class WithinProblems(Analysis):
    """Spearman's rho, each of all prefixes, of originally correct and of originally incorrect rollouts.

    Attributes:
        rho, rho_correct, rho_incorrect: of distance and accuracy, ranks within a problem and position; the counts are
            of prefixes that have another to be ranked with.
        opposing, opposing_correct, opposing_incorrect: of distance and number of opposing rollouts, ranks within a
            position, over problems: how far the number of opposing rollouts alone decides the distance.
    """

    rho: Estimate
    rho_correct: Estimate
    rho_incorrect: Estimate
    opposing: Estimate
    opposing_correct: Estimate
    opposing_incorrect: Estimate


def opposing_rollouts(prefixes: pandas.DataFrame, rollouts: Iterable[Rollout]) -> np.ndarray:
    """(N,) how many graded rollouts of the prefix's group have the other outcome."""
    number = Counter((rollout.group, rollout.correct) for rollout in rollouts)
    pairs = zip(prefixes["problem"], prefixes["correct"], strict=True)
    return np.array([number[problem, not correct] for problem, correct in pairs], dtype=int)


def within_problems(prefixes: pandas.DataFrame, opposing: np.ndarray, bootstrap: Bootstrap) -> WithinProblems:
    """Distance against accuracy within problems, and against the number of opposing rollouts over them.

    Args:
        opposing: (N,) of `opposing_rollouts`.
    """
    rows = Rows(prefixes.assign(opposing=opposing))
    correct = rows["correct"].astype(bool)
    outcomes = {
        "": (rows.every, ""),
        "_correct": (correct, ", originally correct rollouts"),
        "_incorrect": (~correct, ", originally incorrect rollouts"),
    }
    within = "rho of distance and accuracy within a problem, at fixed position"
    over = "rho of distance and number of opposing rollouts at fixed position"
    quantities = []
    for name, other, keys, text in (
        ("rho", "accuracy", ["problem", "position"], within),
        ("opposing", "opposing", ["position"], over),
    ):
        strata = rows.strata(keys)
        of = partial(rows.rho, columns=("distance", other), needs="prefixes that differ and can be compared")
        for outcome, (part, whose) in outcomes.items():
            beside = part & (np.bincount(strata[part], minlength=len(part))[strata] > 1)  # alone it says nothing
            quantities.append(of(name + outcome, beside, strata, what=text + whose))
    return bootstrap.analysis(WithinProblems, quantities)
