"""Section 2's aggregate trend: along the reasoning chain, accuracy declines where the distance rises.

    rho = Spearman over positions of (mean accuracy, mean distance)

The curve of all prefixes mixes rollouts of different lengths and outcomes: deep positions are reached by long rollouts
only, which are wrong more often. So the curves of originally correct and incorrect rollouts stand beside it.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.rows import Rows
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity
from openrlhf_shear.report.weighted import ratio, spearman_of

PAPER_RHO = -0.96
FEW_POSITIONS = 5


def aggregate_trend(prefixes: pandas.DataFrame, bootstrap: Bootstrap, min_problems: int = 10) -> Analysis:
    """Means by position: the curves `every`, `correct` and `incorrect` (of originally such rollouts), each with

    positions: tokens, ascending
    accuracy, distance: one a position, over all prefixes there
    rho: between the two, over positions
    left_out: positions that too few problems reach
    reach: how many problems a position needed

    Args:
        min_problems: that must reach a position for it to count; of a table with fewer problems, all of them.
    """
    text, curves = "Aggregate trend: rho of mean accuracy and mean distance over positions", Analysis()
    for outcome, (part, whose) in Rows(prefixes).outcomes().items():
        paper = None if outcome else PAPER_RHO
        curve = _curve(prefixes[part], bootstrap, min_problems, what=text + whose, paper=paper)
        curves[outcome.removeprefix("_") or "every"] = curve
        curves.numbers |= curve.numbers
    return curves


def _curve(prefixes: pandas.DataFrame, bootstrap: Bootstrap, min_problems: int, **of_rho) -> Analysis:
    reached = prefixes.groupby("position")["problem"].nunique()
    reach = max(1, min(min_problems, prefixes["problem"].nunique()))
    positions = reached.index[reached >= reach].to_numpy()
    prefixes = prefixes[prefixes["position"].isin(positions)]
    of = Rows(prefixes)
    sums = partial(of.sums, np.searchsorted(positions, prefixes["position"]), len(positions))
    rows, accuracy, distance = sums(), sums(of["accuracy"]), sums(of["distance"])

    def curves(weights: np.ndarray) -> list[np.ndarray]:
        return [ratio(weights @ total, weights @ rows) for total in (accuracy, distance)]

    needs = "three positions with different accuracies and distances"
    only = f"over {len(positions)} positions only, where even chance gives large values"
    of_rho["caution"] = only if len(positions) < FEW_POSITIONS else None
    quantities = [
        Quantity("accuracy", itemgetter(0), rows, needs, span=1.0),
        Quantity("distance", itemgetter(1), rows, needs),
        Quantity("rho", lambda both: spearman_of(*both), rows.sum(axis=1), needs, 2, **of_rho),
    ]
    made, left_out = bootstrap.estimates(quantities, curves), int((reached < reach).sum())
    return Analysis({"positions": positions.tolist(), **made, "left_out": left_out, "reach": reach}, made.numbers)
