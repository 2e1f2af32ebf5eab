"""How the comparison's pictures are drawn: curves, bars, a heatmap and lines over seeds.

Bands and whiskers are ±1 sample std over seeds. Each function takes (axes, theme) first, as `Picture.plot` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill

from matplotlib.axes import Axes

from openrlhf_shear.report.estimates import Stat
from openrlhf_shear.report.figures import INKS, Theme
from openrlhf_shear.report.plots import line_style


@dataclass(frozen=True)
class Curve:
    """A mean over seeds with its sample std (None where one seed is all there is), in the axis' unit."""

    label: str
    ink: str
    steps: list[int]
    mean: list[float]
    std: list[float] | None


@dataclass(frozen=True)
class Bar:
    """`value` and `seeds` in the axis' unit; `text` is written at its end."""

    label: str
    ink: str
    value: Stat
    seeds: tuple[float, ...]
    text: str


def plot_curves(axis: Axes, theme: Theme, curves: list[Curve], ylabel: str) -> None:
    """Lines with a band of ±1 std; markers where there are few points."""
    for curve in curves:
        axis.plot(curve.steps, curve.mean, label=curve.label, **line_style(theme, curve.ink, len(curve.steps)))
        if curve.std is not None:
            low, high = ([m + sign * s for m, s in zip(curve.mean, curve.std, strict=True)] for sign in (-1, 1))
            axis.fill_between(curve.steps, low, high, color=theme.ink(curve.ink), alpha=theme.band, linewidth=0)
    axis.set(xlabel="Training step", ylabel=ylabel)
    axis.grid(linewidth=0.6)
    axis.xaxis.get_major_locator().set_params(integer=True)


def plot_bars(axis: Axes, theme: Theme, bars: list[Bar], xlabel: str, band: float | None = None) -> None:
    """Horizontal bars from 0 with ±1 std and a dot a seed; `band` is the std of what 0 stands for."""
    for place, bar in enumerate(bars):
        axis.barh(place, bar.value.mean, color=theme.ink(bar.ink), height=0.62, alpha=theme.fill)
        _whisker(axis, theme, place, bar.value)
        axis.plot(
            bar.seeds, [place] * len(bar.seeds), "o", color=theme.paper, markeredgecolor=theme.text, markersize=3.6
        )
    ends = [end for bar in bars for end in (0.0, -(band or 0), *_ends(bar.value), *bar.seeds)]
    _label_bars(axis, [(place, bar.value, bar.seeds, bar.text) for place, bar in enumerate(bars)], ends)
    axis.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axis.invert_yaxis()
    if band:
        axis.axvspan(-band, band, color=theme.ink("gray"), alpha=0.25, linewidth=0, zorder=0)
    axis.axvline(0, color=theme.text, linewidth=1)
    axis.set_xlabel(xlabel)
    axis.grid(axis="x", linewidth=0.6)


def plot_groups(axis: Axes, theme: Theme, groups: dict[str, list[Bar]], xlabel: str) -> None:
    """Horizontal bars side by side under each group's name, one colour a label."""
    place, ticks, labelled, placed = 0.0, [], set(), []
    for bars in groups.values():
        ticks.append(place + (len(bars) - 1) / 2)
        for bar in bars:
            shown = bar.label if bar.label not in labelled else None
            labelled.add(bar.label)
            axis.barh(place, bar.value.mean, color=theme.ink(bar.ink), height=0.8, alpha=theme.fill, label=shown)
            _whisker(axis, theme, place, bar.value)
            placed.append((place, bar.value, (), bar.text))
            place += 1
        place += 0.8
    _label_bars(axis, placed, [end for _, value, _, _ in placed for end in (0.0, *_ends(value))])
    axis.set_yticks(ticks, ["\n".join(fill(line, 26) for line in name.split("\n")) for name in groups])
    axis.invert_yaxis()
    axis.axvline(0, color=theme.text, linewidth=1)
    axis.set_xlabel(xlabel)
    axis.grid(axis="x", linewidth=0.6)


def _ends(value: Stat) -> tuple[float, float]:
    return value.mean - (value.std or 0), value.mean + (value.std or 0)


def _whisker(axis: Axes, theme: Theme, place: float, value: Stat) -> None:
    if value.std is not None:
        axis.errorbar(value.mean, place, xerr=value.std, color=theme.text, capsize=3, linewidth=1.1)


def _label_bars(axis: Axes, placed: list[tuple], ends: list[float]) -> None:
    span = (max(ends) - min(ends)) or 1.0
    for place, value, seeds, text in placed:
        right = value.mean >= 0
        edge = max(*_ends(value), *seeds) if right else min(*_ends(value), *seeds)
        side = "left" if right else "right"
        axis.text(edge + (1 if right else -1) * 0.035 * span, place, text, va="center", ha=side, fontsize=9)
    room = 0.42 * span  # for the text
    left = room if any(value.mean < 0 for _, value, _, _ in placed) else 0.04 * span if min(ends) < 0 else 0
    axis.set_xlim(min(ends) - left, max(ends) + room)


def plot_heatmap(axis: Axes, theme: Theme, rows: list, columns: list, cells: dict[tuple, Stat], names: tuple) -> None:
    """Percent at (row, column), written in each cell; `names` are the axes' (rows, columns) and the colour bar's."""
    grid = [[cells[r, c].mean if (r, c) in cells else float("nan") for c in columns] for r in rows]
    image = axis.imshow(grid, cmap="cividis", aspect="auto")
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            value = cells.get((row, column))
            dim = value and image.norm(value.mean) < 0.55
            colour = theme.text if value is None else "white" if dim else "black"
            spread = "" if value is None or value.std is None else f"\n± {value.std:.1f}"
            text = "-" if value is None else f"{value.mean:.1f}{spread}"
            axis.text(j, i, text, ha="center", va="center", color=colour)
    axis.set_yticks(range(len(rows)), rows)
    axis.set_xticks(range(len(columns)), columns)
    axis.set(ylabel=names[0], xlabel=names[1])
    axis.figure.colorbar(image, ax=axis, label=names[2]).outline.set_visible(False)


def plot_lines(axis: Axes, theme: Theme, lines: dict[tuple[str, str], list[tuple]], names: tuple[str, str]) -> None:
    """(label, ink) -> (x, Stat) with error bars, side by side on equally spaced x; `names` are the axes' (x, y)."""
    places = {x: i for i, x in enumerate(sorted({x for points in lines.values() for x, _ in points}))}
    for i, ((label, ink), points) in enumerate(lines.items()):
        shift = 0.05 * (i - (len(lines) - 1) / 2)  # so that error bars stand side by side
        _, _, dash, marker = INKS[ink]
        axis.errorbar(
            [places[x] + shift for x, _ in points],
            [value.mean for _, value in points],
            yerr=[value.std or 0 for _, value in points],
            color=theme.ink(ink),
            linestyle=dash,
            marker=marker,
            markersize=5,
            capsize=3,
            label=label,
        )
    axis.set_xticks(list(places.values()), list(places))
    axis.set_xlim(-0.4, len(places) - 0.6)
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.grid(linewidth=0.6)
