"""How the diagnosis' pictures are drawn, with the report's themes and inks; what they show is decided in `pictures`.

Bands and whiskers are 95% intervals over problems. Each function takes (axes, theme) first, as `Picture.plot` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from openrlhf_shear.report.bootstrap import Analysis
from openrlhf_shear.report.figures import Theme
from openrlhf_shear.report.plots import line, line_style, panels, reach, whiskers

OUTCOMES = {True: ("Originally correct", "blue"), False: ("Originally incorrect", "vermilion")}
GROUP_INKS = ("gray", "blue", "orange", "purple", "green", "vermilion", "brown")
ACCURACY, DISTANCE = "Continuation accuracy", "Distance to the opposing side (nbar)"
COLUMNS = 5  # of small multiples


def plot_trend(axis: Axes, theme: Theme, curve: Analysis) -> None:
    """Accuracy on the left axis and distance on the right one, by position."""
    right = axis.twinx()
    right.spines["right"].set_visible(True)
    for side, estimates, ink, label in (
        (axis, curve.accuracy, "blue", ACCURACY),
        (right, curve.distance, "brown", DISTANCE),
    ):
        line(side, theme, curve.positions, estimates, ink, label)
        side.set_ylabel(label, color=theme.ink(ink))
        side.tick_params(axis="y", colors=theme.ink(ink))
    axis.plot([], [], label=DISTANCE, **line_style(theme, "brown", len(curve.positions)))  # legends see one axis only
    axis.set_xlabel("Prefix length (tokens)")
    axis.grid(linewidth=0.6)


def plot_changes(axis: Axes, theme: Theme, changes: Analysis) -> None:
    """How many events have which dAcc and dW, and the mean dW by dAcc."""
    events, step = changes.table, changes.threshold
    x = np.arange(events["d_accuracy"].min() - step / 2, events["d_accuracy"].max() + step, step)
    y = np.linspace(events["d_distance"].min(), events["d_distance"].max() + 1e-9, 41)
    counts = np.histogram2d(events["d_accuracy"], events["d_distance"], (x, y))[0].T
    map_name = "cividis" if theme.dark else "cividis_r"  # the rare ones nearest to the paper's colour
    norm = LogNorm(1, max(counts.max(), 2))
    image = axis.pcolormesh(x, y, np.ma.masked_equal(counts, 0), cmap=map_name, norm=norm, rasterized=True)
    bar = axis.figure.colorbar(image, ax=axis, label="Events", format="{x:g}")  # the default writes mathematics
    bar.minorticks_off()  # of few events it labels those too
    bar.outline.set_visible(False)
    means = [level.distance for level in changes.levels]
    whiskers(axis, theme, [level.change for level in changes.levels], means, "vermilion", "Mean, 95% interval")
    axis.axhline(0, color=theme.text, linewidth=0.8)
    axis.axvline(0, color=theme.text, linewidth=0.8)
    axis.set(xlabel="Change of continuation accuracy", ylabel="Change of distance (nbar)")


def plot_accuracy(axis: Axes, theme: Theme, separation: Analysis) -> None:
    """Every prefix as a dot, and the means of both outcomes by bin of distance."""
    points, rng = separation.table, np.random.default_rng(0)
    blur = 0.35 * separation.levels[1]  # equal accuracies side by side
    shown = rng.permutation(len(points))  # no outcome always on top
    colours = np.where(points["correct"], *(theme.ink(OUTCOMES[outcome][1]) for outcome in (True, False)))
    heights = points["accuracy"].to_numpy() + rng.uniform(-blur, blur, len(points))
    opacity = float(np.clip(600 / max(len(points), 1), 0.06, 0.5))
    place = points["distance"].to_numpy()[shown], heights[shown]
    axis.scatter(*place, s=5, c=colours[shown], alpha=opacity, linewidth=0, rasterized=True)
    for outcome, (label, ink) in OUTCOMES.items():
        means = [b.accuracy_correct if outcome else b.accuracy_incorrect for b in separation.bins]
        whiskers(axis, theme, [b.distance.value for b in separation.bins], means, ink, label, outlined=True)
    axis.set(xlabel=DISTANCE, ylabel=ACCURACY, ylim=(-0.05, 1.05))
    axis.grid(linewidth=0.6)


def plot_densities(axis: Axes, theme: Theme, separation: Analysis) -> None:
    """One small panel a bin: how both outcomes' accuracies are distributed."""
    bins, levels = separation.bins, separation.levels
    titles = [f"{b.low:.2f} to {b.high:.2f}" for b in bins]
    legend = {label: line_style(theme, ink) for label, ink in OUTCOMES.values()}
    shown = panels(axis, titles, "Accuracy", "Share of the outcome's prefixes", COLUMNS, legend)
    for panel, b in zip(shown, bins, strict=True):
        for outcome, density in ((True, b.density_correct), (False, b.density_incorrect)):
            label, ink = OUTCOMES[outcome]
            line(panel, theme, levels, density, ink, label, marker="", linewidth=1.2)
        panel.set(xticks=(0, 0.5, 1), xticklabels=("0", ".5", "1"))
    panel.set_ylim(0, 1.05 * max(one.value or 0 for b in bins for one in (*b.density_correct, *b.density_incorrect)))


def plot_positions(axis: Axes, theme: Theme, groups: Sequence[Analysis]) -> None:
    """Accuracy by quantile of distance, a line a group of positions."""
    for i, group in enumerate(groups):
        rho = "" if group.rho.value is None else f": rho {group.rho.value:.2f}"
        label = f"Tokens {group.first} to {group.last}{rho}"
        whiskers(axis, theme, [e.value for e in group.distance], group.accuracy, GROUP_INKS[i % 7], label)
    axis.set(xlabel=DISTANCE, ylabel=ACCURACY)
    axis.grid(linewidth=0.6)


def plot_groups(axis: Axes, theme: Theme, groups: Analysis) -> None:
    """Shares of groups by how many of their rollouts are correct."""
    for kept, ink, label in ((True, "blue", "Retained"), (False, "gray", "All correct or all incorrect")):
        levels = [one for one in groups.levels if (one.retained_share is not None) == kept]
        x, (values, around) = [one.accuracy for one in levels], reach([one.share for one in levels])
        hatch = None if kept else "//"
        bars = {"width": 0.8 / groups.samples, "alpha": theme.fill, "hatch": hatch, "edgecolor": theme.paper}
        axis.bar(x, values, color=theme.ink(ink), label=label, linewidth=0, **bars)
        axis.errorbar(x, values, yerr=around, color=theme.text, linestyle="", capsize=3, linewidth=1.1)
    axis.set(xlabel="Accuracy of the group", ylabel="Share of groups")
    ticks = [one.accuracy for one in groups.levels[:: -(-groups.samples // 8)]]
    axis.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axis.grid(axis="y", linewidth=0.6)


def plot_heatmap(axis: Axes, theme: Theme, values: pandas.DataFrame, names: tuple[str, str], error: int | None) -> None:
    """Distances between spans: the index and columns are the tokens at which they start, `names` their rollouts.

    `error` is the first wrong token of the columns' rollout; a line stands before the first span that starts there or
    later.
    """
    image = axis.imshow(np.ma.masked_invalid(values), cmap="cividis", aspect="auto")
    axis.figure.colorbar(image, ax=axis, label="Distance (nbar)").outline.set_visible(False)
    for side, starts in ((axis.yaxis, values.index), (axis.xaxis, values.columns)):
        shown = range(0, len(starts), max(1, -(-len(starts) // 8)))
        side.set_ticks(shown, [starts[i] for i in shown])
    if error is not None:
        place = np.searchsorted(values.columns, error) - 0.5
        axis.axvline(place, color="white", linewidth=2.6)
        axis.axvline(place, color="black", linewidth=1.2, linestyle="--")
    axis.set(ylabel=f"{names[0]}, span's first token", xlabel=f"{names[1]}, span's first token")
