"""How many completions ended at the token limit, early and late: what the budget alone does to the accuracy.

A continuation has as many tokens left as its prefix did not use, and one that is cut short is mostly graded wrong. So
where truncation grows with the position, accuracy falls with it whatever the reasoning is like.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.rows import Rows
from openrlhf_shear.diagnosis.analyses.trend import early_late
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.weighted import ratio


@dataclass(frozen=True)
class Truncation(Analysis):
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


def truncation(prefixes: pandas.DataFrame, bootstrap: Bootstrap) -> Truncation:
    """Does the token limit take more of the late continuations?"""
    sample = Rows(prefixes)
    cells = [np.zeros(len(prefixes), dtype=int), early_late(sample["position"])]

    def table(values: np.ndarray | None) -> np.ndarray:
        """(P, 3) sums by problem of all, of early and of late prefixes."""
        return np.hstack([sample.sums(cell, n, values) for cell, n in zip(cells, (1, 2), strict=True)])

    rows, cut, drawn = table(None), table(sample["truncated"]), table(sample["completions"])

    def shares(weights: np.ndarray) -> np.ndarray:
        return ratio(weights @ cut, weights @ drawn)

    of, text = partial(Quantity, needs="prefixes at different positions"), "Completions that ended at the token limit"
    ends = rows[:, 1:].sum(axis=1)
    quantities = [
        of("every", itemgetter(0), rows[:, 0], span=1.0, what=text),
        of("first", itemgetter(1), rows[:, 1], span=1.0, what=f"{text}, first quartile of prefix positions"),
        of("last", itemgetter(2), rows[:, 2], span=1.0, what=f"{text}, last quartile of prefix positions"),
        of("difference", lambda m: m[2] - m[1], ends, span=2.0, what=f"{text}, last minus first quartile"),
    ]
    return bootstrap.analysis(Truncation, quantities, shares)
