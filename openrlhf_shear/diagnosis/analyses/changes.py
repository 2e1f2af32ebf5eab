"""Section 2's local association (appendix A's mutation events): where accuracy drops within a rollout, does W rise?

    dAcc_t = Acc(s_t) - Acc(s_{t-1}),   dW_t = W(s_t) - W(s_{t-1}),   event: |dAcc_t| >= 1 / completions

s_t and s_{t-1} are prefixes of one rollout that end one stride apart. An event need not be a change of reasoning: two
draws of 16 completions at the same success rate mostly differ by one or more of them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.rows import Rows
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, parts

PAPER_RHO = -0.42


def stride_changes(prefixes: pandas.DataFrame, completions: int, stride: int, bootstrap: Bootstrap) -> Analysis:
    """Changes between prefixes of a rollout that are at most a stride apart.

    threshold: of |dAcc|, for an event
    strides: all pairs of neighbouring prefixes
    rho: of events. rho_correct, rho_incorrect: of events in originally correct and incorrect rollouts
    rho_position: of events, ranks taken among events at the same position
    rho_strides: of all pairs, events or not
    levels: by dAcc (`change`), ascending, the mean dW (`distance`) of its events

    The table is of events: problem, correct, position, d_accuracy, d_distance.

    Args:
        completions: asked for a prefix; the threshold is one of them, whatever number of them has a verdict.
        stride: tokens.
    """
    rows, threshold = Rows(_pairs(prefixes, stride)), 1 / completions
    event = np.abs(rows["d_accuracy"]) >= threshold - 1e-9
    of = partial(
        rows.rho, columns=("d_accuracy", "d_distance"), needs="changes of accuracy and of distance that differ"
    )
    text = f"Local association: rho of stride-wise changes, |dAcc| >= {threshold:.4g}"
    papers = {"": PAPER_RHO}
    outcomes = rows.outcomes().items()
    made = bootstrap.estimates(
        [
            *(of(f"rho{o}", event & part, paper=papers.get(o), what=text + whose) for o, (part, whose) in outcomes),
            of("rho_position", event, rows.strata("position"), what=f"{text}, at fixed position"),
            of("rho_strides", rows.every, what="Local association: rho of all stride-wise changes"),
        ]
    )
    events = rows.frame[event].reset_index(drop=True)
    entries = {"threshold": threshold, "strides": len(rows.frame), **made}
    return Analysis(entries | {"levels": _levels(events, completions, bootstrap)}, made.numbers, events)


def _pairs(prefixes: pandas.DataFrame, stride: int) -> pandas.DataFrame:
    """problem, correct, position (of the second), d_accuracy, d_distance."""
    ordered = prefixes.sort_values(["problem", "sample", "position"], ignore_index=True)
    change = ordered.groupby(["problem", "sample"])[["position", "accuracy", "distance"]].diff()
    neighbours = change["position"].le(stride)  # the first of a rollout has no difference: False
    # rounded, since differences of equal fractions may differ in their last bit, and ranks would tell them apart
    ordered = ordered.assign(d_accuracy=change["accuracy"].round(9), d_distance=change["distance"])
    kept = ["problem", "correct", "position", "d_accuracy", "d_distance"]
    return ordered.loc[neighbours, kept].reset_index(drop=True)


def _levels(events: pandas.DataFrame, completions: int, bootstrap: Bootstrap) -> list[Analysis]:
    change = (events["d_accuracy"] * completions).round().to_numpy() / completions
    levels, cells = np.unique(change, return_inverse=True)
    distance = Rows(events).means("distance", "d_distance", cells, len(levels), needs="an event")
    return parts(change=levels.tolist(), **bootstrap.estimates([distance]))
