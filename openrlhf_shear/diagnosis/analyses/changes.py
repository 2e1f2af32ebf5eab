"""Section 2's local association (appendix A's mutation events): where accuracy drops within a rollout, does W rise?

    dAcc_t = Acc(s_t) - Acc(s_{t-1}),   dW_t = W(s_t) - W(s_{t-1}),   event: |dAcc_t| >= 1 / completions

s_t and s_{t-1} are prefixes of one rollout that end one stride apart. An event need not be a change of reasoning: two
draws of 16 completions at the same success rate mostly differ by one or more of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.rows import Rows
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap
from openrlhf_shear.report.estimates import Estimate

PAPER_RHO = -0.42


@dataclass(frozen=True)
class Level:
    """The mean dW of the events with this dAcc."""

    change: float
    distance: Estimate


@dataclass(frozen=True)
class Changes(Analysis):
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


def stride_changes(prefixes: pandas.DataFrame, completions: int, stride: int, bootstrap: Bootstrap) -> Changes:
    """Changes between prefixes of a rollout that are at most a stride apart.

    Args:
        completions: asked for a prefix; the threshold is one of them, whatever number of them has a verdict.
        stride: tokens.
    """
    rows, threshold = Rows(_pairs(prefixes, stride)), 1 / completions
    event = np.abs(rows["d_accuracy"]) >= threshold - 1e-9
    correct = rows["correct"].astype(bool)
    of = partial(
        rows.rho, columns=("d_accuracy", "d_distance"), needs="changes of accuracy and of distance that differ"
    )
    text = f"Local association: rho of stride-wise changes, |dAcc| >= {threshold:.4g}"
    every = "Local association: rho of all stride-wise changes"
    quantities = [
        of("rho", event, paper=PAPER_RHO, what=text),
        of("rho_correct", event & correct, what=f"{text}, originally correct rollouts"),
        of("rho_incorrect", event & ~correct, what=f"{text}, originally incorrect rollouts"),
        of("rho_position", event, rows.strata(["position"]), what=f"{text}, at fixed position"),
        of("rho_strides", rows.every, what=every),
    ]
    events = rows.frame[event].reset_index(drop=True)
    beside = {"levels": _levels(events, completions, bootstrap), "events": events}
    return bootstrap.analysis(Changes, quantities, threshold=threshold, strides=len(rows.frame), **beside)


def _pairs(prefixes: pandas.DataFrame, stride: int) -> pandas.DataFrame:
    """problem, correct, position (of the second), d_accuracy, d_distance."""
    ordered = prefixes.sort_values(["problem", "sample", "position"], ignore_index=True)
    change = ordered.groupby(["problem", "sample"])[["position", "accuracy", "distance"]].diff()
    neighbours = change["position"].le(stride)  # the first of a rollout has no difference: False
    # rounded, since differences of equal fractions may differ in their last bit, and ranks would tell them apart
    ordered = ordered.assign(d_accuracy=change["accuracy"].round(9), d_distance=change["distance"])
    kept = ["problem", "correct", "position", "d_accuracy", "d_distance"]
    return ordered.loc[neighbours, kept].reset_index(drop=True)


def _levels(events: pandas.DataFrame, completions: int, bootstrap: Bootstrap) -> list[Level]:
    change = (events["d_accuracy"] * completions).round().to_numpy() / completions
    levels, cells = np.unique(change, return_inverse=True)
    distance = Rows(events).means("distance", "d_distance", cells, len(levels), needs="an event")
    means = bootstrap.estimates([distance])["distance"]
    return [Level(float(level), mean) for level, mean in zip(levels, means, strict=True)]
