"""Appendix A: is the distance only a clock? Distance and accuracy within groups of prefix positions.

Both change along the chain, so over all prefixes they correlate even if neither knows of the other. A group of
positions (the paper's control) still spans many; `rho_fixed` ranks within each single position, where depth can play no
part.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.rows import Rows
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, ends, parts

PAPER_RHO = (-0.055, -0.225)  # of the first and the last of its groups


def position_control(prefixes: pandas.DataFrame, bootstrap: Bootstrap, groups: int = 4, quantiles: int = 5) -> Analysis:
    """Distance against accuracy in groups of positions that hold about as many prefixes each.

    groups: ascending in position, of prefixes with `first` <= position <= `last`: `rho` of distance and accuracy,
        `rho_fixed` of their ranks within single positions; means of `distance` and `accuracy` by quantile of distance
        within the group, ascending
    rho: over all prefixes, the clock included
    rho_fixed: of ranks within single positions; rho_fixed_correct, rho_fixed_incorrect: of prefixes of one outcome

    Args:
        groups, quantiles: fewer are made where positions or distances are equal.
    """
    rows, position = Rows(prefixes), prefixes["position"].to_numpy()
    fixed = rows.strata("position")
    of = partial(rows.rho, columns=("distance", "accuracy"), needs="distances and accuracies that differ")
    both, at_fixed = "rho of distance and accuracy", "rho at fixed position"
    quantities = [of("rho", rows.every, what=f"{both}, all prefixes")]
    for outcome, (part, whose) in rows.outcomes().items():
        what = at_fixed + whose if outcome else f"{both} at fixed position"
        quantities.append(of(f"rho_fixed{outcome}", part, fixed, what=what))
    group = _quantiles(position, groups)
    members = [group == g for g in range(int(group.max(initial=-1)) + 1)]
    ranges = [(int(position[own].min()), int(position[own].max())) for own in members]
    for g, (own, paper) in enumerate(zip(members, ends(*PAPER_RHO, len(members)), strict=True)):
        where = "positions {} to {}".format(*ranges[g])
        quantities.append(of(f"rho {g}", own, paper=paper, what=f"{both}, {where}"))
        quantities.append(of(f"rho_fixed {g}", own, fixed, what=f"{at_fixed}, {where}"))
    made = bootstrap.estimates(quantities)
    of_groups = parts(
        first=[first for first, _ in ranges],
        last=[last for _, last in ranges],
        rho=[made.pop(f"rho {g}") for g in range(len(ranges))],
        rho_fixed=[made.pop(f"rho_fixed {g}") for g in range(len(ranges))],
    )
    for part, own in zip(of_groups, members, strict=True):
        part |= _by_quantile(prefixes[own], quantiles, bootstrap)
    return Analysis({"groups": of_groups, **made}, made.numbers)


def _quantiles(values: np.ndarray, number: int) -> np.ndarray:
    """(N,) which of `number` about equal parts each value is in, from 0 and without gaps; equal values are in one."""
    if not len(values):
        return np.zeros(0, dtype=int)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, number + 1)[1:-1]))
    return np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)[1]


def _by_quantile(prefixes: pandas.DataFrame, quantiles: int, bootstrap: Bootstrap) -> Analysis:
    """Mean distance and mean accuracy by quantile of distance."""
    rows, cells = Rows(prefixes), _quantiles(prefixes["distance"].to_numpy(), quantiles)
    of = partial(rows.means, cells=cells, n=int(cells.max(initial=-1)) + 1, needs="a prefix")
    return bootstrap.estimates([of("distance", "distance"), of("accuracy", "accuracy", span=1.0)])
