"""Appendix A: is the distance only a clock? Distance and accuracy within groups of prefix positions.

Both change along the chain, so over all prefixes they correlate even if neither knows of the other. A group of
positions (the paper's control) still spans many; `rho_fixed` ranks within each single position, where depth can play no
part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas

from openrlhf_shear.report.estimates import Bootstrap, Estimate
from openrlhf_shear.report.weighted import Ordered, problem_codes, ratio, spearman, sums

PAPER_RHO = (-0.055, -0.225)  # of the first and the last of its groups
NEEDS = "distances and accuracies that differ"


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
class PositionControl:
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

    @property
    def numbers(self) -> dict[str, Estimate]:
        numbers = {
            "rho of distance and accuracy, all prefixes": self.rho,
            "rho of distance and accuracy at fixed position": self.rho_fixed,
            "rho at fixed position, originally correct rollouts": self.rho_fixed_correct,
            "rho at fixed position, originally incorrect rollouts": self.rho_fixed_incorrect,
        }
        for group in self.groups:
            text = f"positions {group.first} to {group.last}"
            numbers[f"rho of distance and accuracy, {text}"] = group.rho
            numbers[f"rho at fixed position, {text}"] = group.rho_fixed
        return numbers


def position_control(
    prefixes: pandas.DataFrame, bootstrap: Bootstrap, groups: int = 4, quantiles: int = 5
) -> PositionControl:
    """Distance against accuracy in groups of positions that hold about as many prefixes each.

    Args:
        groups, quantiles: fewer are made where positions or distances are equal.
    """
    position = prefixes["position"].to_numpy()
    correct = prefixes["correct"].to_numpy(dtype=bool)
    problems, number = problem_codes(prefixes["problem"])
    group = _quantiles(position, groups)
    made = int(group.max(initial=-1)) + 1
    everywhere = np.ones(len(prefixes), dtype=bool)
    parts = [(everywhere, False), (everywhere, True), (correct, True), (~correct, True)]
    parts += [(group == g, fixed) for g in range(made) for fixed in (False, True)]
    rhos = [_rho(prefixes, part, problems, fixed) for part, fixed in parts]
    bases = np.stack([np.bincount(problems[part], minlength=number) for part, _ in parts], axis=1)
    papers = [None] * len(parts)
    if made > 1:
        papers[4], papers[-2] = PAPER_RHO
    every = bootstrap.estimates(lambda weights: np.array([rho(weights) for rho in rhos]), bases, NEEDS, 2, papers)
    found = []
    for g in range(made):
        own = group == g
        curve = _by_quantile(prefixes[own], quantiles, problems[own], number, bootstrap)
        at = slice(4 + 2 * g, 6 + 2 * g)
        found.append(PositionGroup(int(position[own].min()), int(position[own].max()), *every[at], *curve))
    return PositionControl(found, *every[:4])


def _quantiles(values: np.ndarray, parts: int) -> np.ndarray:
    """(N,) which of about equal parts each value is in, from 0 and without gaps; equal values are in one."""
    if not len(values):
        return np.zeros(0, dtype=int)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, parts + 1)[1:-1]))
    return np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)[1]


def _rho(prefixes: pandas.DataFrame, part: np.ndarray, problems: np.ndarray, fixed: bool):
    """A function of problem weights: rho of the part's prefixes, at fixed position or not."""
    own, of = prefixes[part], problems[part]
    strata = pandas.factorize(own["position"])[0] if fixed else None
    x, y = Ordered(own["distance"], strata), Ordered(own["accuracy"], strata)
    return lambda weights: spearman(x, y, weights[of])


def _by_quantile(
    prefixes: pandas.DataFrame, quantiles: int, problems: np.ndarray, number: int, bootstrap: Bootstrap
) -> tuple[list[Estimate], list[Estimate]]:
    """Mean distance and mean accuracy by quantile of distance."""
    cells = _quantiles(prefixes["distance"].to_numpy(), quantiles)
    n = int(cells.max(initial=-1)) + 1
    rows = sums(problems, cells, None, (number, n))
    totals = [sums(problems, cells, prefixes[name].to_numpy(), (number, n)) for name in ("distance", "accuracy")]

    def statistic(weights: np.ndarray) -> np.ndarray:
        return np.concatenate([ratio(weights @ total, weights @ rows) for total in totals])

    spans = [None] * n + [1.0] * n
    means = bootstrap.estimates(statistic, np.hstack([rows, rows]), "a prefix", spans)
    return means[:n], means[n:]
