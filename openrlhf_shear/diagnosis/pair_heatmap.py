"""The picture of one correct and one incorrect rollout: how far each span of one is from each span of the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas

from openrlhf_shear.diagnosis import figures
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Omission
from openrlhf_shear.rollouts.record import Rollout


def heatmap_picture(rollouts: Sequence[Rollout], place: str) -> Picture | Omission:
    """Of the first group that has such a heatmap, the correct and incorrect rollout with most tokens together."""
    heading = "Distances between two rollouts' spans"
    pair = _longest_pair(rollouts)
    if pair is None:
        return Omission(heading, "no correct and incorrect rollout of a group have a heatmap", "heatmap")
    correct, incorrect, values = pair
    rows = [(start, column, values.loc[start, column]) for start in values.index for column in values.columns]
    names = f"Correct rollout {correct.sample}", f"Incorrect rollout {incorrect.sample}"
    error = incorrect.first_error
    marked = "" if error is None else " The line stands before the first span that starts at or after the first error."
    return Picture(
        "heatmap",
        heading,
        f"{place}; problem {correct.group}",
        f"Pairwise distances in units of nbar between spans of rollout {correct.sample} (correct, "
        f"{len(correct.tokens)} tokens) and {incorrect.sample} (incorrect, {len(incorrect.tokens)} tokens) of problem "
        f"{correct.group}.{marked}",
        ("correct rollout's span", "incorrect rollout's span", "distance"),
        tuple((int(a), int(b), float(value) if np.isfinite(value) else "") for a, b, value in rows),
        partial(figures.plot_heatmap, values=values, names=names, error=error),
        height=4.2,
    )


def _longest_pair(rollouts: Sequence[Rollout]) -> tuple[Rollout, Rollout, pandas.DataFrame] | None:
    """A correct and an incorrect rollout, and their distances with the correct one's spans as rows."""
    by_sample = {(rollout.group, rollout.sample): rollout for rollout in rollouts}
    pairs = [
        (one, by_sample[one.group, heatmap.other], heatmap.values)
        for one in rollouts
        for heatmap in one.heatmaps or ()
        if heatmap.values and {one.correct, by_sample[one.group, heatmap.other].correct} == {True, False}
    ]
    if not pairs:
        return None
    of_first_group = [pair for pair in pairs if pair[0].group == pairs[0][0].group]
    one, other, values = max(of_first_group, key=lambda pair: len(pair[0].tokens) + len(pair[1].tokens))
    starts = [[of.span_starts[span] for span in of.heatmap_spans] for of in (one, other)]
    table = pandas.DataFrame(np.reshape(values, (len(starts[0]), len(starts[1]))), *starts)
    return (one, other, table) if one.correct else (other, one, table.T)
