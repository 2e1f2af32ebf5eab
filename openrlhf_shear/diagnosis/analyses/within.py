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
from functools import partial

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.rows import Rows
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap
from openrlhf_shear.rollouts.record import Rollout


def opposing_rollouts(prefixes: pandas.DataFrame, rollouts: Iterable[Rollout]) -> np.ndarray:
    """(N,) how many graded rollouts of the prefix's group have the other outcome."""
    number = Counter((rollout.group, rollout.correct) for rollout in rollouts)
    pairs = zip(prefixes["problem"], prefixes["correct"], strict=True)
    return np.array([number[problem, not correct] for problem, correct in pairs], dtype=int)


def within_problems(prefixes: pandas.DataFrame, opposing: np.ndarray, bootstrap: Bootstrap) -> Analysis:
    """Spearman's rho, each of all prefixes, of originally correct and of originally incorrect rollouts.

    rho, rho_correct, rho_incorrect: of distance and accuracy, ranks within a problem and position; the counts are of
        prefixes that have another to be ranked with
    opposing, opposing_correct, opposing_incorrect: of distance and number of opposing rollouts, ranks within a
        position, over problems: how far the number of opposing rollouts alone decides the distance

    Args:
        opposing: (N,) of `opposing_rollouts`.
    """
    rows, quantities = Rows(prefixes.assign(opposing=opposing)), []
    for name, other, keys, text in (
        ("rho", "accuracy", ("problem", "position"), "accuracy within a problem,"),
        ("opposing", "opposing", ("position",), "number of opposing rollouts"),
    ):
        strata, what = rows.strata(*keys), f"rho of distance and {text} at fixed position"
        of = partial(rows.rho, columns=("distance", other), needs="prefixes that differ and can be compared")
        for outcome, (part, whose) in rows.outcomes().items():
            beside = part & (np.bincount(strata[part], minlength=len(part))[strata] > 1)  # alone it says nothing
            quantities.append(of(name + outcome, beside, strata, what=what + whose))
    return bootstrap.estimates(quantities)
