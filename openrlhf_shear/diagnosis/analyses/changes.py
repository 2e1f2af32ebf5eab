"""Section 2's local association (appendix A's mutation events): where accuracy drops within a rollout, does W rise?

    dAcc_t = Acc(s_t) - Acc(s_{t-1}),   dW_t = W(s_t) - W(s_{t-1}),   event: |dAcc_t| >= 1 / completions

s_t and s_{t-1} are prefixes of one rollout that end one stride apart. An event need not be a change of reasoning: two
draws of 16 completions at the same success rate mostly differ by one or more of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas

from openrlhf_shear.report.estimates import Bootstrap, Estimate
from openrlhf_shear.report.weighted import Ordered, problem_codes, ratio, spearman, sums

PAPER_RHO = -0.42
NEEDS = "changes of accuracy and of distance that differ"


@dataclass(frozen=True)
class Level:
    """The mean dW of the events with this dAcc."""

    change: float
    distance: Estimate


@dataclass(frozen=True)
class Changes:
    """Stride-wise changes.

    Attributes:
        threshold: of |dAcc|, for an event.
        strides: all pairs of neighbouring prefixes.
        rho: of events. rho_correct, rho_incorrect: of events in originally correct and incorrect rollouts.
        rho_position: of events, ranks taken among events at the same position.
        rho_strides: of all pairs, events or not.
        levels: by dAcc, ascending.
        events: problem, correct, position, d_accuracy, d_distance; for pictures, not written as JSON.
    """

    threshold: float
    strides: int
    rho: Estimate
    rho_correct: Estimate
    rho_incorrect: Estimate
    rho_position: Estimate
    rho_strides: Estimate
    levels: list[Level]
    events: pandas.DataFrame = field(repr=False, compare=False)

    @property
    def numbers(self) -> dict[str, Estimate]:
        text = f"Local association: rho of stride-wise changes, |dAcc| >= {self.threshold:.4g}"
        return {
            text: self.rho,
            f"{text}, originally correct rollouts": self.rho_correct,
            f"{text}, originally incorrect rollouts": self.rho_incorrect,
            f"{text}, at fixed position": self.rho_position,
            "Local association: rho of all stride-wise changes": self.rho_strides,
        }


def stride_changes(prefixes: pandas.DataFrame, completions: int, stride: int, bootstrap: Bootstrap) -> Changes:
    """Changes between prefixes of a rollout that are at most a stride apart.

    Args:
        completions: asked for a prefix; the threshold is one of them, whatever number of them has a verdict.
        stride: tokens.
    """
    pairs = _pairs(prefixes, stride)
    event = pairs["d_accuracy"].abs().to_numpy() >= 1 / completions - 1e-9
    correct = pairs["correct"].to_numpy(dtype=bool)
    problems, number = problem_codes(pairs["problem"])
    positions = pandas.factorize(pairs["position"])[0]
    parts = [
        (event, None),
        (event & correct, None),
        (event & ~correct, None),
        (event, positions),
        (np.ones(len(pairs), dtype=bool), None),
    ]
    rhos = [_association(pairs, part, problems, strata) for part, strata in parts]

    def statistic(weights: np.ndarray) -> np.ndarray:
        return np.array([rho(weights) for rho in rhos])

    rows = np.stack([np.bincount(problems[part], minlength=number) for part, _ in parts], axis=1)
    papers = [PAPER_RHO, None, None, None, None]
    estimates = bootstrap.estimates(statistic, rows, NEEDS, span=2, papers=papers)
    events = pairs[event].reset_index(drop=True)
    levels = _levels(events, problems[event], number, completions, bootstrap)
    return Changes(1 / completions, len(pairs), *estimates, levels, events)


def _pairs(prefixes: pandas.DataFrame, stride: int) -> pandas.DataFrame:
    """problem, correct, position (of the second), d_accuracy, d_distance."""
    ordered = prefixes.sort_values(["problem", "sample", "position"], ignore_index=True)
    change = ordered.groupby(["problem", "sample"])[["position", "accuracy", "distance"]].diff()
    neighbours = change["position"].le(stride)  # the first of a rollout has no difference: False
    ordered = ordered.assign(d_accuracy=change["accuracy"], d_distance=change["distance"])
    kept = ["problem", "correct", "position", "d_accuracy", "d_distance"]
    return ordered.loc[neighbours, kept].reset_index(drop=True)


def _association(pairs: pandas.DataFrame, part: np.ndarray, problems: np.ndarray, strata: np.ndarray | None):
    """A function of problem weights: rho of the part's pairs."""
    strata = None if strata is None else strata[part]
    # rounded, since differences of equal fractions may differ in their last bit, and ranks would tell them apart
    x = Ordered(pairs["d_accuracy"].to_numpy()[part].round(9), strata)
    y = Ordered(pairs["d_distance"].to_numpy()[part], strata)
    return lambda weights: spearman(x, y, weights[problems[part]])


def _levels(events: pandas.DataFrame, problems: np.ndarray, number: int, completions: int, bootstrap: Bootstrap):
    change = (events["d_accuracy"] * completions).round().to_numpy() / completions
    levels, cells = np.unique(change, return_inverse=True)
    shape = (number, len(levels))
    rows, total = (sums(problems, cells, values, shape) for values in (None, events["d_distance"].to_numpy()))
    means = bootstrap.estimates(lambda weights: ratio(weights @ total, weights @ rows), rows, "an event")
    return [Level(float(level), mean) for level, mean in zip(levels, means, strict=True)]
