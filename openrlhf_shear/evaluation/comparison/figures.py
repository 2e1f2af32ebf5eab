"""Drawing of the comparison's pictures: curves, bars and a heatmap; bands and whiskers are ±1 sample std.

The std is over seeds. Each function takes (axes, theme) first, as `Picture.plot` does.
"""

from dataclasses import dataclass

from matplotlib.axes import Axes

from openrlhf_shear.report.estimates import Stat
from openrlhf_shear.report.figures import Theme, line


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


def plot_curves(axis: Axes, theme: Theme, curves: list[Curve], names: tuple[str, str]) -> None:
    """Draw lines with bands; markers where there are few points. `names` are the axes' (x, y)."""
    for curve in curves:
        line(axis, theme, list(curve.points), list(curve.points.values()), curve.ink, curve.label)
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.grid(linewidth=0.6)
    axis.xaxis.get_major_locator().set_params(integer=True)


def plot_bars(axis: Axes, theme: Theme, bars: list[Bar], xlabel: str, band: float | None = None) -> None:
    """Draw horizontal bars from 0 with their texts, and a dot for each seed. `band` is the std of the method at 0."""
    places, spreads = range(len(bars)), [bar.value.std or 0 for bar in bars]
    whisker = {"ecolor": theme.text, "capsize": 3, "elinewidth": 1.1}
    style = {"color": [theme.ink(bar.ink) for bar in bars], "height": 0.62, "alpha": theme.fill, "error_kw": whisker}
    shown = axis.barh(places, [bar.value.mean for bar in bars], xerr=spreads, **style)
    axis.bar_label(shown, [bar.text for bar in bars], padding=6, fontsize=9)
    for place, bar in zip(places, bars, strict=True):
        dots = {"color": theme.paper, "markeredgecolor": theme.text, "markersize": 3.6}
        axis.plot(bar.seeds, [place] * len(bar.seeds), "o", **dots)
    axis.margins(x=0.35)  # room for the texts
    axis.set_yticks(places, [bar.label for bar in bars])
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
