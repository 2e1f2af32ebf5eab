"""How the lab's pictures are drawn, with the report's themes and inks; what they show is decided in `pictures`.

Each function takes (axes, theme) first, as `Picture.plot` does. Intervals are 95%.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from openrlhf_shear.diagnosis.figures import line
from openrlhf_shear.lab.placement import Placement
from openrlhf_shear.lab.worth import Block, Paired, Worth
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.figures import INKS, Theme
from openrlhf_shear.rollouts.localisation import FirstErrors

COLUMNS = 3  # of small multiples
PANEL = 23  # characters of their titles' lines
AUCS = (  # label, ink
    ("After against before the first error", "blue"),
    ("Same index, incorrect rollouts of a group", "vermilion"),
    ("The same split of correct rollouts", "gray"),
    ("A random split", "orange"),
)


def aucs(found: Placement) -> tuple[Estimate, ...]:
    """Those of `AUCS`."""
    return found.errors.auc, found.auc_incorrect, found.errors.auc_control, found.errors.auc_random


def wrapped(rule: str, width: int = 30) -> str:
    """A rule's name in lines of at most `width` characters, broken after slashes, colons and modules where it can be.

    >>> print(wrapped("shear/window=4/stride=1/matched", 20))
    shear/window=4/
    stride=1/matched
    """
    return re.sub("([/:.]) ", r"\1", fill(re.sub(r"([/:]|\.(?=[^\W\d]))", r"\1 ", rule), width))


def plot_worth(axis: Axes, theme: Theme, rows: Sequence[Worth], baseline: str) -> None:
    """A row a rule: its mean accuracy minus the baseline's and, hollow, minus its own matched control's."""
    marks = (
        ("baseline", f"Over {baseline}", "blue", -0.17, {"marker": "o"}),
        ("matched", "Over its mass-matched control", "vermilion", 0.17, {"marker": "s", "mfc": theme.paper}),
    )
    for role, label, ink, shift, marker in marks:
        shifts = [shift * ("matched" in row.against) for row in rows]
        placed = [(i + shifts[i], row.against[role].mean) for i, row in enumerate(rows) if role in row.against]
        if placed:
            values, reach = _points([found for _, found in placed])
            style = {"color": theme.ink(ink), "linestyle": "", "capsize": 2, "linewidth": 1.3, "label": label}
            axis.errorbar(values, [y for y, _ in placed], xerr=reach, markersize=4.2, **style, **marker)
    axis.axvline(0, color=theme.text, linewidth=0.8)
    axis.set_xlabel("Difference (percentage points)")
    _rule_rows(axis, theme, [row.rule for row in rows])


def _points(found: Sequence[Paired]) -> tuple[np.ndarray, np.ndarray]:
    """Means (n,) and reaches (2, n) of the intervals, in percentage points; a reach of 0 without an interval."""
    means = 100 * np.array([one.mean for one in found])
    ends = [(one.mean, one.mean) if one.low is None else (one.low, one.high) for one in found]
    return means, np.abs(100 * np.array(ends).T - means)


def plot_curves(axis: Axes, theme: Theme, curves: Mapping[str, Sequence[Block]], baseline: str) -> None:
    """A small panel a rule: accuracy by step, the baseline's on the same seeds, and the band of their difference."""
    colour, gray = theme.ink("blue"), theme.ink("gray")
    axis.plot([], [], color=colour, linewidth=1.6, label="The rule")
    axis.plot([], [], color=gray, linestyle=INKS["gray"][2], linewidth=1.4, label=baseline)
    heights = []
    shown = list(_panels(axis, list(curves), "Training step", "Accuracy of rollouts (%)"))
    for panel, blocks in zip(shown, curves.values(), strict=True):
        x = [(one.first + one.last) / 2 for one in blocks]
        means, others = 100 * np.array([(one.mean, one.baseline) for one in blocks]).T
        half = np.array([100 * half_width(one.difference) for one in blocks])
        panel.plot(x, others, color=gray, linestyle=INKS["gray"][2], linewidth=1.2)
        panel.plot(x, means, color=colour, linewidth=1.4)
        panel.fill_between(x, means - half, means + half, color=colour, alpha=0.22, linewidth=0)
        heights += [*others, *(means - half), *(means + half)]
    room = 0.04 * (max(heights) - min(heights)) + 0.5
    for i, panel in enumerate(shown):
        panel.set_ylim(min(heights) - room, max(heights) + room)
        panel.tick_params(labelleft=i % COLUMNS == 0)


def half_width(found: Paired) -> float:
    """Of the interval; 0 where there is none."""
    return 0.0 if found.low is None else (found.high - found.low) / 2


def plot_placement(axis: Axes, theme: Theme, placements: Mapping[str, Placement]) -> None:
    """A row a rule: the AUC of its weights at the first error and its controls, as dots with thin intervals."""
    for place, (label, ink) in enumerate(AUCS):
        values, low, high = np.array([aucs(found)[place].shown for found in placements.values()]).T
        y = np.arange(len(values)) + 0.17 * (place - 1.5)
        reach = np.nan_to_num([values - low, high - values]).clip(0)  # a value may lie outside its percentiles
        style = {"color": theme.ink(ink), "linestyle": "", "marker": INKS[ink][3], "markersize": 4}
        axis.errorbar(values, y, xerr=reach, linewidth=1, label=label, **style)
    axis.axvline(0.5, color=theme.text, linewidth=0.8)
    axis.set_xlabel("AUC of token weights")
    _rule_rows(axis, theme, list(placements))


def plot_profiles(axis: Axes, theme: Theme, placements: Mapping[str, FirstErrors]) -> None:
    """A small panel a rule: mean weight around the first error, each on a scale of its own."""
    sides = (("omega", "Incorrect rollouts", "vermilion"), ("control", "Correct rollouts, same tokens", "blue"))
    for _, label, ink in sides:
        axis.plot([], [], color=theme.ink(ink), linestyle=INKS[ink][2], label=label)
    panels = _panels(axis, list(placements), "Tokens from the error", "Mean weight")
    for panel, found in zip(panels, placements.values(), strict=True):
        x = [one.offset for one in found.profile]
        for name, label, ink in sides:
            line(panel, theme, x, [getattr(one, name) for one in found.profile], ink, label)
        panel.axvline(0, color=theme.text, linewidth=0.7)


def _rule_rows(axis: Axes, theme: Theme, rules: list[str]) -> None:
    axis.set_yticks(range(len(rules)), [wrapped(rule) for rule in rules], fontsize=8)
    axis.set_ylim(len(rules) - 0.5, -0.5)
    axis.grid(axis="x", linewidth=0.6)
    for i in range(len(rules) - 1):
        axis.axhline(i + 0.5, color=theme.grid, linewidth=0.5)


def _panels(axis: Axes, rules: list[str], x: str, y: str) -> Iterator[Axes]:
    """Small axes in the place of `axis`, which keeps the legend of all, each titled with a rule."""
    axis.set_axis_off()
    axis.figure.supylabel(y, fontsize=10)
    columns = min(COLUMNS, len(rules))
    grid = axis.get_subplotspec().subgridspec(-(-len(rules) // columns), columns)
    for i, rule in enumerate(rules):
        panel = axis.figure.add_subplot(grid[i // columns, i % columns])
        lowest = i + columns >= len(rules)
        panel.set_title(wrapped(rule, PANEL), fontsize=7.5)
        panel.set_xlabel(x if lowest else "", fontsize=7.5)
        panel.tick_params(labelsize=7, labelbottom=lowest)
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        panel.yaxis.set_major_locator(MaxNLocator(4))
        panel.grid(linewidth=0.5)
        yield panel
