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

from openrlhf_shear.report.estimates import Bootstrap, Estimate
from openrlhf_shear.report.weighted import Ordered, problem_codes, spearman
from openrlhf_shear.rollouts.record import Rollout

NEEDS = "prefixes that differ and can be compared"
OUTCOMES = ("", ", originally correct rollouts", ", originally incorrect rollouts")


@dataclass(frozen=True)
class WithinProblems:
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

    @property
    def numbers(self) -> dict[str, Estimate]:
        within = "rho of distance and accuracy within a problem, at fixed position"
        opposing = "rho of distance and number of opposing rollouts at fixed position"
        found = (self.rho, self.rho_correct, self.rho_incorrect)
        confound = (self.opposing, self.opposing_correct, self.opposing_incorrect)
        return {within + of: estimate for of, estimate in zip(OUTCOMES, found, strict=True)} | {
            opposing + of: estimate for of, estimate in zip(OUTCOMES, confound, strict=True)
        }


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
    problems, number = problem_codes(prefixes["problem"])
    distance, accuracy = prefixes["distance"].to_numpy(), prefixes["accuracy"].to_numpy()
    rhos, bases = [], []
    for other, keys in ((accuracy, ["problem", "position"]), (np.asarray(opposing), ["position"])):
        for outcome in (np.ones(len(prefixes), dtype=bool), correct, ~correct):
            part = np.flatnonzero(outcome)
            strata = strata_of(prefixes.iloc[part], keys)
            beside = np.bincount(strata)[strata] > 1  # alone in its stratum it says nothing
            part, strata = part[beside], strata[beside]
            rhos.append((Ordered(distance[part], strata), Ordered(other[part], strata), problems[part]))
            bases.append(np.bincount(problems[part], minlength=number))

    def statistic(weights: np.ndarray) -> np.ndarray:
        return np.array([spearman(x, y, weights[of]) for x, y, of in rhos])

    return WithinProblems(*bootstrap.estimates(statistic, np.stack(bases, axis=1), NEEDS, 2))


def strata_of(prefixes: pandas.DataFrame, keys: list[str]) -> np.ndarray:
    """(N,) which distinct values of the keys each prefix has, from 0."""
    return prefixes.groupby(keys).ngroup().to_numpy(dtype=int)
