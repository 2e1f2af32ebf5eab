"""How the comparison's pictures are drawn: curves, bars, a heatmap and lines over seeds.

Bands and whiskers are ±1 sample std over seeds. Each function takes (axes, theme) first, as `Picture.plot` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

from matplotlib.axes import Axes

from openrlhf_shear.report.estimates import Stat
from openrlhf_shear.report.figures import INKS, Theme, line_style


@dataclass(frozen=True)
class Curve:
    """Step -> mean over seeds, in the axis' unit."""

    label: str
    ink: str
    points: dict[int, Stat]


@dataclass(frozen=True)
class Bar:
    """`value` and `seeds` in the axis' unit; `text` is written at its end."""

    label: str
    ink: str
    value: Stat
    seeds: tuple[float, ...]
    text: str

    @property
    def ends(self) -> tuple[float, ...]:
        """What the bar reaches to with its whisker and dots."""
        std = self.value.std or 0
        return (self.value.mean - std, self.value.mean + std, *self.seeds)


def plot_curves(axis: Axes, theme: Theme, curves: list[Curve], ylabel: str) -> None:
    """Lines with a band; markers where there are few points."""
    for curve in curves:
        steps, values = list(curve.points), list(curve.points.values())
        axis.plot(steps, [v.mean for v in values], label=curve.label, **line_style(theme, curve.ink, len(steps)))
        if values[0].std is not None:
            low, high = ([v.mean + sign * v.std for v in values] for sign in (-1, 1))
            axis.fill_between(steps, low, high, color=theme.ink(curve.ink), alpha=theme.band, linewidth=0)
    axis.set(xlabel="Training step", ylabel=ylabel)
    axis.grid(linewidth=0.6)
    axis.xaxis.get_major_locator().set_params(integer=True)


def plot_bars(axis: Axes, theme: Theme, bars: list[Bar], xlabel: str, band: float | None = None) -> None:
    """Horizontal bars from 0 with a dot a seed; `band` is the std of what 0 stands for."""
    _bars(axis, theme, dict(enumerate(bars)), [None] * len(bars), 0.62, band)
    _finish(axis, theme, range(len(bars)), [bar.label for bar in bars], xlabel, band)


def plot_groups(axis: Axes, theme: Theme, groups: dict[str, list[Bar]], xlabel: str) -> None:
    """Horizontal bars side by side under each group's name, one colour a label."""
    place, ticks, placed = 0.0, [], {}
    for bars in groups.values():
        ticks.append(place + (len(bars) - 1) / 2)
        for bar in bars:
            placed[place] = bar
            place += 1
        place += 0.8
    labels = [bar.label for bar in placed.values()]
    shown = [None if label in labels[:i] else label for i, label in enumerate(labels)]
    _bars(axis, theme, placed, shown, 0.8, None)
    names = ["\n".join(fill(line, 26) for line in name.split("\n")) for name in groups]
    _finish(axis, theme, ticks, names, xlabel, None)


def _bars(
    axis: Axes, theme: Theme, placed: dict[float, Bar], labels: list[str | None], height: float, band: float | None
) -> None:
    """Bars with their texts, and room for these; `labels` are those in the legend."""
    for (place, bar), label in zip(placed.items(), labels, strict=True):
        axis.barh(place, bar.value.mean, color=theme.ink(bar.ink), height=height, alpha=theme.fill, label=label)
        if bar.value.std is not None:
            axis.errorbar(bar.value.mean, place, xerr=bar.value.std, color=theme.text, capsize=3, linewidth=1.1)
        if bar.seeds:
            places = [place] * len(bar.seeds)
            axis.plot(bar.seeds, places, "o", color=theme.paper, markeredgecolor=theme.text, markersize=3.6)
    ends = [end for bar in placed.values() for end in (0.0, -(band or 0), *bar.ends)]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0
    for place, bar in placed.items():
        right = bar.value.mean >= 0
        edge = max(bar.ends) + 0.035 * span if right else min(bar.ends) - 0.035 * span
        axis.text(edge, place, bar.text, va="center", ha="left" if right else "right", fontsize=9)
    room = 0.42 * span  # for the text
    left = room if any(bar.value.mean < 0 for bar in placed.values()) else 0.04 * span if low < 0 else 0
    axis.set_xlim(low - left, high + room)


def _finish(
    axis: Axes, theme: Theme, ticks: Sequence[float], names: list[str], xlabel: str, band: float | None
) -> None:
    axis.set_yticks(ticks, names)
    axis.invert_yaxis()
    if band:
        axis.axvspan(-band, band, color=theme.ink("gray"), alpha=0.25, linewidth=0, zorder=0)
    axis.axvline(0, color=theme.text, linewidth=1)
    axis.set_xlabel(xlabel)
    axis.grid(axis="x", linewidth=0.6)


def plot_heatmap(axis: Axes, theme: Theme, rows: list, columns: list, cells: dict[tuple, Stat], names: tuple) -> None:
    """Percent at (row, column), written in each cell; `names` are the axes' (rows, columns) and the colour bar's."""
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


def plot_lines(axis: Axes, theme: Theme, lines: list[tuple[str, str, list]], names: tuple[str, str]) -> None:
    """(label, ink, [(x, Stat)]) with error bars, side by side on equally spaced x; `names` are the axes' (x, y)."""
    places = {x: i for i, x in enumerate(sorted({x for _, _, points in lines for x, _ in points}))}
    for i, (label, ink, points) in enumerate(lines):
        shift = 0.05 * (i - (len(lines) - 1) / 2)  # so that error bars stand side by side
        _, _, dash, marker = INKS[ink]
        x, values = [places[x] + shift for x, _ in points], [value for _, value in points]
        style = {"color": theme.ink(ink), "linestyle": dash, "marker": marker, "markersize": 5, "capsize": 3}
        axis.errorbar(x, [v.mean for v in values], yerr=[v.std or 0 for v in values], label=label, **style)
    axis.set_xticks(list(places.values()), list(places))
    axis.set_xlim(-0.4, len(places) - 0.6)
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.grid(linewidth=0.6)
