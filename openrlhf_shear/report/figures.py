"""How pictures are drawn: one panel each, on light or dark, as PNG or SVG; what they show is decided in `pictures`.

Colours tell apart under the common colour blindnesses (after Okabe and Ito), and each also has its own dash and marker.
All text is drawn as it is: no name is read as mathematics or markup.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from openrlhf_shear.report.estimates import Interval

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


@dataclass(frozen=True)
class Theme:
    """Light or dark; `fill` is the opacity of bars, on which whiskers stand out, `band` of what is around a line."""

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
    """A panel: `plot` draws it on axes; `header` and `rows` are its numbers, for who cannot see it and for a CSV."""

    name: str  # of its files
    heading: str
    place: str  # backbone and task
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple, ...]
    plot: Callable[[Axes, Theme], None]
    height: float = 3.7  # inches


def columns(numbers: Mapping[str, Sequence]) -> tuple[tuple[str, ...], tuple[tuple, ...]]:
    """Header and rows of a picture, of equally long columns by title."""
    return tuple(numbers), tuple(zip(*numbers.values(), strict=True))


def spread(title: str, numbers: Iterable[Interval | None]) -> dict[str, list]:
    """Value, low and high of numbers as three columns; empty where there is none."""
    shown = [(None,) * 3 if number is None else (number.value, number.low, number.high) for number in numbers]
    ends = (title, f"{title}, low", f"{title}, high")
    return {end: ["" if row[i] is None else row[i] for row in shown] for i, end in enumerate(ends)}


def render(picture: Picture, kind: str, dark: bool = False, titled: bool = True) -> bytes:
    """The picture as a file's bytes; `kind` is png or svg. The same picture gives the same bytes."""
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
