"""Drawing of the comparison's pictures: curves, bars, a heatmap and lines; bands and whiskers are ±1 sample std.

The std is over seeds. Each function takes (axes, theme) first, as `Picture.plot` does.
"""

from dataclasses import dataclass

from matplotlib.axes import Axes

from openrlhf_shear.report.estimates import Stat
from openrlhf_shear.report.figures import Theme, line, whiskers


@dataclass(frozen=True)
class Curve:
    """A curve: x -> mean over seeds, in the axis' unit."""

    label: str
    ink: str
    points: dict[float, Stat]


@dataclass(frozen=True)
class Bar:
    """A bar: `value` and `seeds` in the axis' unit; `text` stands at its end."""

    label: str
    ink: str
    value: Stat
    seeds: tuple[float, ...]
    text: str

    @property
    def ends(self) -> tuple[float, ...]:
        """The values that the bar reaches with its whisker and dots."""
        std = self.value.std or 0
        return (self.value.mean - std, self.value.mean + std, *self.seeds)


def plot_curves(axis: Axes, theme: Theme, curves: list[Curve], names: tuple[str, str]) -> None:
    """Draw lines with bands; markers where there are few points. `names` are the axes' (x, y)."""
    for curve in curves:
        line(axis, theme, list(curve.points), list(curve.points.values()), curve.ink, curve.label)
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.grid(linewidth=0.6)
    axis.xaxis.get_major_locator().set_params(integer=True)


def plot_lines(axis: Axes, theme: Theme, curves: list[Curve], names: tuple[str, str]) -> None:
    """Draw lines with error bars, side by side on equally spaced x; `names` are the axes' (x, y)."""
    places = {x: i for i, x in enumerate(sorted({x for curve in curves for x in curve.points}))}
    for i, curve in enumerate(curves):
        shift = 0.05 * (i - (len(curves) - 1) / 2)  # error bars must not overlap
        shifted = [places[x] + shift for x in curve.points]
        whiskers(axis, theme, shifted, list(curve.points.values()), curve.ink, curve.label)
    axis.set_xticks(list(places.values()), list(places))
    axis.set_xlim(-0.4, len(places) - 0.6)
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.grid(linewidth=0.6)


def plot_bars(
    axis: Axes,
    theme: Theme,
    bars: dict[float, Bar],
    ticks: dict[float, str],
    xlabel: str,
    band: float | None = None,
    legend: bool = False,
) -> None:
    """Draw horizontal bars from 0 at their places, with their texts, room for these, and a dot for each seed.

    `band` is the std of the method at 0. With `legend`, labels stand in the legend, not at the ticks.
    """
    named = set()
    for place, bar in bars.items():
        label = bar.label if legend and bar.label not in named else None
        named.add(bar.label)
        style = {"color": theme.ink(bar.ink), "height": 0.8 if legend else 0.62, "alpha": theme.fill}
        axis.barh(place, bar.value.mean, label=label, **style)
        if bar.value.std is not None:
            axis.errorbar(bar.value.mean, place, xerr=bar.value.std, color=theme.text, capsize=3, linewidth=1.1)
        if bar.seeds:
            places = [place] * len(bar.seeds)
            axis.plot(bar.seeds, places, "o", color=theme.paper, markeredgecolor=theme.text, markersize=3.6)
    ends = [end for bar in bars.values() for end in (0.0, -(band or 0), *bar.ends)]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0
    for place, bar in bars.items():
        right = bar.value.mean >= 0
        edge = max(bar.ends) + 0.035 * span if right else min(bar.ends) - 0.035 * span
        axis.text(edge, place, bar.text, va="center", ha="left" if right else "right", fontsize=9)
    room = 0.42 * span  # for the text
    left = room if any(bar.value.mean < 0 for bar in bars.values()) else 0.04 * span if low < 0 else 0
    axis.set_xlim(low - left, high + room)
    axis.set_yticks(list(ticks), list(ticks.values()))
    axis.invert_yaxis()
    if band:
        axis.axvspan(-band, band, color=theme.ink("gray"), alpha=0.25, linewidth=0, zorder=0)
    axis.axvline(0, color=theme.text, linewidth=1)
    axis.set_xlabel(xlabel)
    axis.grid(axis="x", linewidth=0.6)


def plot_heatmap(axis: Axes, theme: Theme, rows: list, columns: list, cells: dict[tuple, Stat], names: tuple) -> None:
    """Draw percentages at (row, column), also as text; `names` are the axes' (rows, columns) and the colour bar's."""
    grid = [[cells[r, c].mean if (r, c) in cells else float("nan") for c in columns] for r in rows]
    image = axis.imshow(grid, cmap="cividis", aspect="auto")
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            text, colour = "-", theme.text
            if value := cells.get((row, column)):
                text = f"{value.mean:.1f}" + ("" if value.std is None else f"\n± {value.std:.1f}")
                colour = "white" if image.norm(value.mean) < 0.55 else "black"
            axis.text(j, i, text, ha="center", va="center", color=colour)
    axis.set_yticks(range(len(rows)), rows)
    axis.set_xticks(range(len(columns)), columns)
    axis.set(ylabel=names[0], xlabel=names[1])
    axis.figure.colorbar(image, ax=axis, label=names[2]).outline.set_visible(False)
