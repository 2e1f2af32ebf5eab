"""How many completions ended at the token limit, early and late: what the budget alone does to the accuracy.

A continuation has as many tokens left as its prefix did not use, and one that is cut short is mostly graded wrong. So
where truncation grows with the position, accuracy falls with it whatever the reasoning is like.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.trend import early_late
from openrlhf_shear.report.estimates import Bootstrap, Estimate
from openrlhf_shear.report.weighted import problem_codes, ratio, sums


@dataclass(frozen=True)
class Truncation:
    """Shares of completions with a verdict; rows are prefixes.

    Attributes:
        every: of all prefixes.
        first, last: of those up to the first and from the third quartile of all prefix positions, as `Quartiles` cuts.
        difference: last - first.
    """

    every: Estimate
    first: Estimate
    last: Estimate
    difference: Estimate

    @property
    def numbers(self) -> dict[str, Estimate]:
        text = "Completions that ended at the token limit"
        return {
            text: self.every,
            f"{text}, first quartile of prefix positions": self.first,
            f"{text}, last quartile of prefix positions": self.last,
            f"{text}, last minus first quartile": self.difference,
        }


def truncation(prefixes: pandas.DataFrame, bootstrap: Bootstrap) -> Truncation:
    """Does the token limit take more of the late continuations?"""
    problems, number = problem_codes(prefixes["problem"])
    cells = [np.zeros(len(prefixes), dtype=int), early_late(prefixes["position"].to_numpy())]

    def table(values: np.ndarray | None) -> np.ndarray:
        """(P, 3) sums by problem of all, of early and of late prefixes."""
        return np.hstack([sums(problems, cell, values, (number, n)) for cell, n in zip(cells, (1, 2), strict=True)])

    rows, cut, drawn = table(None), *(table(prefixes[name].to_numpy()) for name in ("truncated", "completions"))

    def statistic(weights: np.ndarray) -> np.ndarray:
        every, first, last = ratio(weights @ cut, weights @ drawn)
        return np.array([every, first, last, last - first])

    bases = np.hstack([rows, rows[:, 1:].sum(axis=1, keepdims=True)])
    return Truncation(*bootstrap.estimates(statistic, bases, "prefixes at different positions", [1.0] * 3 + [2.0]))
