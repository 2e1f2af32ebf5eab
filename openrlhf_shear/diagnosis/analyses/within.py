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

import numpy as np
import pandas

from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.quantities import Analysis, numbers_of, rho
from openrlhf_shear.report.weighted import problem_codes
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
    correct = prefixes["correct"].to_numpy(dtype=bool)
    problems, _ = problem_codes(prefixes["problem"])
    distance, accuracy = prefixes["distance"].to_numpy(), prefixes["accuracy"].to_numpy()
    within = "rho of distance and accuracy within a problem, at fixed position"
    over = "rho of distance and number of opposing rollouts at fixed position"
    quantities = []
    for name, other, keys, text in (
        ("rho", accuracy, ["problem", "position"], within),
        ("opposing", np.asarray(opposing), ["position"], over),
    ):
        strata = strata_of(prefixes, keys)
        for suffix, part, of in (
            ("", np.ones(len(prefixes), dtype=bool), ""),
            ("_correct", correct, ", originally correct rollouts"),
            ("_incorrect", ~correct, ", originally incorrect rollouts"),
        ):
            beside = part & (np.bincount(strata[part], minlength=len(prefixes))[strata] > 1)  # alone it says nothing
            columns = distance, other, problems, beside, strata
            needs = "prefixes that differ and can be compared"
            quantities.append(rho(name + suffix, *columns, needs=needs, what=text + of))
    estimates = bootstrap.estimates(quantities)
    return WithinProblems(**estimates, numbers=numbers_of(quantities, estimates))


def strata_of(prefixes: pandas.DataFrame, keys: list[str]) -> np.ndarray:
    """(N,) which distinct values of the keys each prefix has, from 0."""
    return prefixes.groupby(keys).ngroup().to_numpy(dtype=int)
