"""Appendix A: is the distance only a clock? Distance and accuracy within groups of prefix positions.

Both change along the chain, so over all prefixes they correlate even if neither knows of the other. A group of
positions (the paper's control) still spans many; `rho_fixed` ranks within each single position, where depth can play no
part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.rows import Rows
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, ends, numbers_of
from openrlhf_shear.report.estimates import Estimate

PAPER_RHO = (-0.055, -0.225)  # of the first and the last of its groups


@dataclass(frozen=True)
class PositionGroup:
    """Prefixes with first <= position <= last.

    Attributes:
        rho: of distance and accuracy. rho_fixed: of their ranks within single positions.
        distance, accuracy: means by quantile of distance within the group, ascending.
    """

    first: int
    last: int
    rho: Estimate
    rho_fixed: Estimate
    distance: list[Estimate]
    accuracy: list[Estimate]


@dataclass(frozen=True)
class PositionControl(Analysis):
    """Distance against accuracy.

    Attributes:
        groups: ascending in position.
        rho: over all prefixes, the clock included.
        rho_fixed: of ranks within single positions.
        rho_fixed_correct, rho_fixed_incorrect: the same of prefixes of one outcome.
    """

    groups: list[PositionGroup]
    rho: Estimate
    rho_fixed: Estimate
    rho_fixed_correct: Estimate
    rho_fixed_incorrect: Estimate


def position_control(
    prefixes: pandas.DataFrame, bootstrap: Bootstrap, groups: int = 4, quantiles: int = 5
) -> PositionControl:
    """Distance against accuracy in groups of positions that hold about as many prefixes each.

    Args:
        groups, quantiles: fewer are made where positions or distances are equal.
    """
    rows, position = Rows(prefixes), prefixes["position"].to_numpy()
    correct, fixed = rows["correct"].astype(bool), rows.strata(["position"])
    of = partial(rows.rho, columns=("distance", "accuracy"), needs="distances and accuracies that differ")
    both, at_fixed = "rho of distance and accuracy", "rho at fixed position"
    quantities = [
        of("rho", rows.every, what=f"{both}, all prefixes"),
        of("rho_fixed", rows.every, fixed, what=f"{both} at fixed position"),
        of("rho_fixed_correct", correct, fixed, what=f"{at_fixed}, originally correct rollouts"),
        of("rho_fixed_incorrect", ~correct, fixed, what=f"{at_fixed}, originally incorrect rollouts"),
    ]
    group = _quantiles(position, groups)
    parts = [group == g for g in range(int(group.max(initial=-1)) + 1)]
    ranges = [(int(position[own].min()), int(position[own].max())) for own in parts]
    for g, (own, paper) in enumerate(zip(parts, ends(*PAPER_RHO, len(parts)), strict=True)):
        where = "positions {} to {}".format(*ranges[g])
        quantities.append(of(f"rho {g}", own, paper=paper, what=f"{both}, {where}"))
        quantities.append(of(f"rho_fixed {g}", own, fixed, what=f"{at_fixed}, {where}"))
    estimates = bootstrap.estimates(quantities)
    numbers = numbers_of(quantities, estimates)
    made = [
        PositionGroup(
            *ranges[g],
            rho=estimates.pop(f"rho {g}"),
            rho_fixed=estimates.pop(f"rho_fixed {g}"),
            **_by_quantile(prefixes[own], quantiles, bootstrap),
        )
        for g, own in enumerate(parts)
    ]
    return PositionControl(made, **estimates, numbers=numbers)


def _quantiles(values: np.ndarray, parts: int) -> np.ndarray:
    """(N,) which of about equal parts each value is in, from 0 and without gaps; equal values are in one."""
    if not len(values):
        return np.zeros(0, dtype=int)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, parts + 1)[1:-1]))
    return np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)[1]


def _by_quantile(prefixes: pandas.DataFrame, quantiles: int, bootstrap: Bootstrap) -> dict[str, list[Estimate]]:
    """Mean distance and mean accuracy by quantile of distance."""
    rows, cells = Rows(prefixes), _quantiles(prefixes["distance"].to_numpy(), quantiles)
    of = partial(rows.means, cells=cells, n=int(cells.max(initial=-1)) + 1, needs="a prefix")
    return bootstrap.estimates([of("distance", "distance"), of("accuracy", "accuracy", span=1.0)])
