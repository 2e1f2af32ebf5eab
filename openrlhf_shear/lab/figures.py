"""How the lab's pictures are drawn, with the report's themes and plots; what they show is decided in `pictures`.

Each function takes (axes, theme) first, as `Picture.plot` does. Intervals are 95%.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes

from openrlhf_shear.lab.worth import Block
from openrlhf_shear.report.figures import Theme
from openrlhf_shear.report.plots import line, line_style, panels
from openrlhf_shear.rollouts.localisation import Offset

COLUMNS = 3  # of small multiples
PANEL = 23  # characters of their titles' lines


def wrapped(rule: str, width: int = 30) -> str:
    """A rule's name in lines of at most `width` characters, broken after slashes, colons and modules where it can be.

    >>> print(wrapped("shear/window=4/stride=1/matched", 20))
    shear/window=4/
    stride=1/matched
    """
    return re.sub("([/:.]) ", r"\1", fill(re.sub(r"([/:]|\.(?=[^\W\d]))", r"\1 ", rule), width))


def plot_curves(axis: Axes, theme: Theme, curves: Mapping[str, Sequence[Block]], baseline: str) -> None:
    """A small panel a rule: accuracy by step, the baseline's on the same seeds, and the band of their difference."""
    for ink, label in (("blue", "The rule"), ("gray", baseline)):
        axis.plot([], [], label=label, **_unmarked(theme, ink))
    shown = _panels(axis, list(curves), "Training step", "Accuracy of rollouts (%)", one_scale=True)
    for panel, blocks in zip(shown, curves.values(), strict=True):
        x = [(one.first + one.last) / 2 for one in blocks]
        means, others = 100 * np.array([(one.mean, one.baseline) for one in blocks]).T
        half = 100 * np.array([one.difference.half_width for one in blocks])
        panel.plot(x, others, **_unmarked(theme, "gray"))
        panel.plot(x, means, **_unmarked(theme, "blue"))
        panel.fill_between(x, means - half, means + half, color=theme.ink("blue"), alpha=theme.band, linewidth=0)


def plot_profiles(axis: Axes, theme: Theme, profiles: Mapping[str, Sequence[Offset]]) -> None:
    """A small panel a rule: mean weight around the first error, each on a scale of its own."""
    sides = (("omega", "Incorrect rollouts", "vermilion"), ("control", "Correct rollouts, same tokens", "blue"))
    for _, label, ink in sides:
        axis.plot([], [], label=label, **_unmarked(theme, ink))
    shown = _panels(axis, list(profiles), "Tokens from the error", "Mean weight", one_scale=False)
    for panel, profile in zip(shown, profiles.values(), strict=True):
        x = [one.offset for one in profile]
        for name, label, ink in sides:
            line(panel, theme, x, [getattr(one, name) for one in profile], ink, label)
        panel.axvline(0, color=theme.text, linewidth=0.7)


def _panels(axis: Axes, rules: list[str], xlabel: str, ylabel: str, one_scale: bool) -> Iterator[Axes]:
    return panels(axis, [wrapped(rule, PANEL) for rule in rules], xlabel, ylabel, COLUMNS, one_scale)


def _unmarked(theme: Theme, ink: str) -> dict:
    return line_style(theme, ink) | {"linewidth": 1.4}
