"""The picture of the distances between the spans of two rollouts, as the paper's heatmap."""

from collections.abc import Sequence

import numpy as np
import pandas
from matplotlib.axes import Axes

from openrlhf_shear.report.figures import Picture, Theme
from openrlhf_shear.report.findings import Omission
from openrlhf_shear.rollouts.record import Rollout


def heatmap_picture(rollouts: Sequence[Rollout], place: str) -> Picture | Omission:
    """Draw the heatmap of the longest pair, a correct and an incorrect rollout, of the first group that has some."""
    heading = "Distances between two rollouts' spans"
    pair = _longest_pair(rollouts)
    if pair is None:
        return Omission(heading, "no correct and incorrect rollout of a group have a heatmap", "heatmap")
    correct, incorrect, values = pair
    error = incorrect.first_error

    def plot(axis: Axes, theme: Theme) -> None:
        image = axis.imshow(np.ma.masked_invalid(values), cmap="cividis", aspect="auto")
        axis.figure.colorbar(image, ax=axis, label="Distance (nbar)").outline.set_visible(False)
        for side, starts in ((axis.yaxis, values.index), (axis.xaxis, values.columns)):
            shown = range(0, len(starts), max(1, -(-len(starts) // 8)))
            side.set_ticks(shown, [starts[i] for i in shown])
        if error is not None:
            first = np.searchsorted(values.columns, error) - 0.5
            axis.axvline(first, color="white", linewidth=2.6)
            axis.axvline(first, color="black", linewidth=1.2, linestyle="--")
        names = f"Correct rollout {correct.sample}", f"Incorrect rollout {incorrect.sample}"
        axis.set(ylabel=f"{names[0]}, span's first token", xlabel=f"{names[1]}, span's first token")

    rows = [(start, column, values.loc[start, column]) for start in values.index for column in values.columns]
    marked = "" if error is None else " The line stands before the first span that starts at or after the first error."
    return Picture(
        *("heatmap", heading, f"{place}; problem {correct.group}"),
        f"Pairwise distances in units of nbar between spans of rollout {correct.sample} (correct, "
        f"{len(correct.tokens)} tokens) and {incorrect.sample} (incorrect, {len(incorrect.tokens)} tokens) of problem "
        f"{correct.group}.{marked}",
        ("correct rollout's span", "incorrect rollout's span", "distance"),
        tuple((int(a), int(b), float(value) if np.isfinite(value) else "") for a, b, value in rows),
        plot,
        height=4.2,
    )


def _longest_pair(rollouts: Sequence[Rollout]) -> tuple[Rollout, Rollout, pandas.DataFrame] | None:
    """Return a correct and an incorrect rollout and their distances, by the starts of their spans (rows, columns)."""
    by_sample = {(rollout.group, rollout.sample): rollout for rollout in rollouts}
    pairs = [
        (rollout, by_sample[rollout.group, heatmap.other], heatmap.values)
        for rollout in rollouts
        for heatmap in rollout.heatmaps or ()
        if heatmap.values and {rollout.correct, by_sample[rollout.group, heatmap.other].correct} == {True, False}
    ]
    if not pairs:
        return None
    of_first_group = [pair for pair in pairs if pair[0].group == pairs[0][0].group]
    first, second, values = max(of_first_group, key=lambda pair: len(pair[0].tokens) + len(pair[1].tokens))
    starts = [[of.span_starts[span] for span in of.heatmap_spans] for of in (first, second)]
    table = pandas.DataFrame(np.reshape(values, (len(starts[0]), len(starts[1]))), *starts)
    return (first, second, table) if first.correct else (second, first, table.T)
