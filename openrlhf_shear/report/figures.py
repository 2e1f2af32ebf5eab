"""Drawing of pictures: one panel each, on light or dark, as PNG or SVG; the `pictures` modules choose the content.

The colours are distinct under the common colour blindnesses (after Okabe and Ito); each has a dash and a marker too.
All text is drawn literally: no name is read as mathematics or markup.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from openrlhf_shear.report.estimates import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 5.2  # inches
# light, dark, dash, marker
INKS = {
    "gray": ("#5b6470", "#b6bec9", "--", "s"),
    "blue": ("#0072b2", "#5db4f0", "-", "o"),
    "orange": ("#c77800", "#f0b040", "-.", "^"),
    "green": ("#00805d", "#3fcf9f", ":", "D"),
    "purple": ("#a8508a", "#e59ac4", (0, (5, 1, 1, 1, 1, 1)), "v"),
    "vermilion": ("#d55e00", "#ff8f52", (0, (8, 2)), "P"),
    "brown": ("#7a4f2b", "#d0a37b", (0, (3, 1)), "X"),
}
FEW_POINTS = 30  # a line of at most so many points has markers
BESIDE = 0.68  # the part of a row's height that its whiskers take


@dataclass(frozen=True)
class Theme:
    """Light or dark colours; `fill` is the opacity of bars below whiskers, `band` that of the area around a line."""

    dark: bool
    paper: str
    text: str
    grid: str
    fill: float
    band: float

    def ink(self, name: str) -> str:
        return INKS[name][self.dark]


LIGHT = Theme(False, "#ffffff", "#1b1f24", "#d9dde3", 0.92, 0.15)
DARK = Theme(True, "#15181d", "#e6e9ee", "#3a414c", 0.72, 0.22)


@dataclass(frozen=True)
class Picture:
    """A panel: `plot` draws it on axes; `header` and `rows` are its numbers, for its CSV and for screen readers."""

    name: str  # stem of its file names
    heading: str
    place: str  # backbone and task
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple, ...]
    plot: Callable[[Axes, Theme], None]
    height: float = 3.7  # inches


def columns(numbers: Mapping[str, Sequence]) -> tuple[tuple[str, ...], tuple[tuple, ...]]:
    """Return header and rows of a picture from equally long columns by title."""
    return tuple(numbers), tuple(zip(*numbers.values(), strict=True))


def spread(title: str, numbers: Iterable[Interval | None]) -> dict[str, list]:
    """Return value, low and high of numbers as three columns; empty cells for None."""
    shown = [(None,) * 3 if number is None else (number.value, number.low, number.high) for number in numbers]
    ends = (title, f"{title}, low", f"{title}, high")
    return {end: ["" if row[i] is None else row[i] for row in shown] for i, end in enumerate(ends)}


def render(picture: Picture, kind: str, dark: bool = False, titled: bool = True) -> bytes:
    """Return the picture as a file's bytes; `kind` is png or svg. The same picture gives the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    theme = DARK if dark else LIGHT
    style = {
        "text.parse_math": False,
        "svg.hashsalt": picture.name,
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "figure.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "legend.frameon": False,
        "legend.handlelength": 3.2,
        "grid.color": theme.grid,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), theme.text),
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(WIDTH, picture.height), layout="constrained")
        axis = figure.add_subplot()
        picture.plot(axis, theme)
        if titled:
            title = "\n".join(filter(None, (picture.heading, fill(picture.place, 60))))
            figure.suptitle(title, fontsize=10)
        handles, labels = axis.get_legend_handles_labels()
        if handles:
            columns = 3 if max(map(len, labels)) < 18 else 2 if max(map(len, labels)) < 32 else 1
            figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9)
        written = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(written, format=kind, dpi=160, metadata=metadata)
    return written.getvalue()


@dataclass(frozen=True)
class Series:
    """Numbers of one kind: `title` names their column, `label` their legend entry.

    Rows of whiskers take one number a row, None to leave it out; `hollow` marks the series as a control.
    """

    title: str
    label: str
    ink: str
    numbers: Sequence[Interval | None]
    hollow: bool = False

    @property
    def columns(self) -> dict[str, list]:
        return spread(self.title, self.numbers)


def line(
    axis: Axes, theme: Theme, x: Sequence, numbers: Sequence[Interval], ink: str, label: str, **style: object
) -> None:
    """Draw a line with its band; markers where there are few points. `style` overrides `line_style`."""
    values, low, high = np.array([number.shown for number in numbers]).T
    axis.plot(x, values, label=label, **line_style(theme, ink, len(x)) | style)
    if np.isfinite(low).any():
        axis.fill_between(x, low, high, color=theme.ink(ink), alpha=theme.band, linewidth=0)


def line_style(theme: Theme, ink: str, points: int = FEW_POINTS + 1) -> dict:
    """Return keyword arguments for `Axes.plot`; with markers for a line of few points."""
    _, _, dash, marker = INKS[ink]
    few = {"marker": marker, "markersize": 3} if points <= FEW_POINTS else {}
    return {"color": theme.ink(ink), "linestyle": dash, "linewidth": 1.6, **few}


def whiskers(
    axis: Axes, theme: Theme, x: Sequence, numbers: Sequence[Interval], ink: str, label: str, outlined: bool = False
) -> None:
    """Draw a line with an interval at each point; `outlined` where it lies on dots of the same colour."""
    values, around = reach(numbers)
    colour, (_, _, dash, marker) = theme.ink(ink), INKS[ink]
    edge = {"markeredgecolor": theme.text, "markeredgewidth": 0.6, "ecolor": theme.text} if outlined else {}
    style = {"linestyle": dash, "linewidth": 1.4, "marker": marker, "markersize": 7 if outlined else 4.5}
    if outlined:
        axis.plot(x, values, color=theme.paper, linewidth=4)
    axis.errorbar(x, values, yerr=around, color=colour, capsize=2.5, label=label, **style, **edge)


def reach(numbers: Sequence[Interval], scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return (n,) values and (2, n) distances from value to low and high; 0 without an interval."""
    values, low, high = scale * np.array([number.shown for number in numbers]).T
    return values, np.nan_to_num([values - low, high - values]).clip(0)  # a value may lie outside its own interval


def plot_rows(
    axis: Axes, theme: Theme, names: Sequence[str], series: Sequence[Series], xlabel: str, line: float, scale: float = 1
) -> None:
    """Draw horizontal whiskers, those of a row below each other; `line` is the x of a vertical line."""
    there = [[each.numbers[row] is not None for each in series] for row in range(len(names))]
    for i, each in enumerate(series):
        rows = [row for row in range(len(names)) if there[row][i]]
        if not rows:
            continue
        values, around = reach([each.numbers[row] for row in rows], scale)
        y = [row + BESIDE / len(series) * (sum(there[row][:i]) - (sum(there[row]) - 1) / 2) for row in rows]
        marker = {"marker": "s", "mfc": theme.paper} if each.hollow else {"marker": INKS[each.ink][3]}
        style = {"color": theme.ink(each.ink), "linestyle": "", "markersize": 4, "linewidth": 1.1, "capsize": 1.5}
        axis.errorbar(values, y, xerr=around, label=each.label, **style, **marker)
    axis.axvline(line, color=theme.text, linewidth=0.8)
    axis.set_xlabel(xlabel)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(axis="x", linewidth=0.6)
    for row in range(len(names) - 1):
        axis.axhline(row + 0.5, color=theme.grid, linewidth=0.5)


def panels(
    axis: Axes,
    titles: Sequence[str],
    xlabel: str,
    ylabel: str,
    columns: int,
    legend: Mapping[str, dict],
    one_scale: bool = True,
) -> Iterator[Axes]:
    """Yield small axes in the place of `axis`, which keeps the shared legend: `legend` maps a label to its line style.

    `one_scale`: the small axes share their y axis.
    """
    from matplotlib.ticker import MaxNLocator

    for label, style in legend.items():
        axis.plot([], [], label=label, **style)
    axis.set_axis_off()
    axis.figure.supylabel(ylabel, fontsize=10)
    columns = min(columns, len(titles))
    grid = axis.get_subplotspec().subgridspec(-(-len(titles) // columns), columns)
    first = None
    for i, title in enumerate(titles):
        panel = axis.figure.add_subplot(grid[i // columns, i % columns], sharey=first if one_scale else None)
        first, lowest = first or panel, i + columns >= len(titles)
        panel.set_title(title, fontsize=7.5)
        panel.set_xlabel(xlabel if lowest else "", fontsize=7.5)
        panel.tick_params(labelsize=7, labelbottom=lowest, labelleft=not one_scale or i % columns == 0)
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        panel.yaxis.set_major_locator(MaxNLocator(4))
        panel.grid(linewidth=0.5)
        yield panel
