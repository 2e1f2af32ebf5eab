"""The lab's pictures with their numbers, and the reasons for missing ones; intervals are 95%."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from openrlhf_shear.lab.worth import Worth
from openrlhf_shear.report.bootstrap import Analysis
from openrlhf_shear.report.estimates import Estimate, Paired
from openrlhf_shear.report.figures import (
    Picture,
    Series,
    Theme,
    columns,
    line,
    line_style,
    panels,
    plot_rows,
    reach,
    spread,
)
from openrlhf_shear.report.findings import Omission

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3  # of small multiples
PANEL = 23  # characters of a line of their titles
ENDS = 1.6  # inches of a picture's title, axis and legend together
LINE = 0.14  # inches of a line of a rule's name
AUCS = (  # label, ink, attribute of a placement
    ("After against before the first error", "blue", "errors.auc"),
    ("Same index, incorrect rollouts of a group", "vermilion", "auc_incorrect"),
    ("The same split of correct rollouts", "gray", "errors.auc_control"),
    ("A random split", "orange", "errors.auc_random"),
)


def worth_picture(worths: Sequence[Worth], baseline: str, place: str) -> Picture | Omission:
    heading = f"Mean accuracy over {baseline}"
    rows = [worth for worth in worths if "baseline" in worth.against]
    if not rows:
        return Omission(heading, f"no rule shares a seed with {baseline}", "worth")
    names, over = [row.rule for row in rows], [row.against["baseline"].mean for row in rows]
    matched = [row.against["matched"].mean if "matched" in row.against else None for row in rows]
    series = [
        Series(f"over {baseline}", f"Over {baseline}", "blue", over),
        Series("over matched", "Over its mass-matched control", "vermilion", matched, hollow=True),
    ]
    return Picture(
        *("worth", heading, place),
        f"Mean accuracy over the steps of training minus that of {baseline} and (hollow) of the rule's own "
        "mass-matched control, with 95% intervals paired over seeds.",
        *columns({"rule": names, **_paired(series[0].title, over), **_paired(series[1].title, matched)}),
        _rows(names, series, xlabel="Difference (percentage points)", line=0, scale=100),
        ENDS + _lines(names),
    )


def curves_picture(curves: Mapping[str, Sequence[Analysis]], baseline: str, place: str) -> Picture | Omission:
    """Draw the learning curves; `curves` maps a rule to the blocks of `worth.curve`."""
    heading = f"Learning curves beside {baseline}"
    shown = {rule: blocks for rule, blocks in curves.items() if blocks}
    if not shown:
        return Omission(heading, f"no rule shares a seed with {baseline}", "curves")

    def plot(axis: Axes, theme: Theme) -> None:
        """Draw a panel for each rule: its accuracy by step, the baseline's on the same seeds, their difference."""
        mine, its = _unmarked(theme, "blue"), _unmarked(theme, "gray")
        legend, titles = {"The rule": mine, baseline: its}, [wrapped(rule, PANEL) for rule in shown]
        drawn = panels(axis, titles, "Training step", "Accuracy of rollouts (%)", COLUMNS, legend)
        for panel, of_rule in zip(drawn, shown.values(), strict=True):
            x = [(block.first + block.last) / 2 for block in of_rule]
            means, others = 100 * np.array([(block.mean, block.baseline) for block in of_rule]).T
            half = 100 * np.array([block.difference.half_width for block in of_rule])
            panel.plot(x, others, **its)
            panel.plot(x, means, **mine)
            panel.fill_between(x, means - half, means + half, color=theme.ink("blue"), alpha=theme.band, linewidth=0)

    blocks = [block for each in shown.values() for block in each]
    numbers = {
        "rule": [rule for rule, each in shown.items() for _ in each],
        "first step": [block.first for block in blocks],
        "last step": [block.last for block in blocks],
        "accuracy": [block.mean for block in blocks],
        baseline: [block.baseline for block in blocks],
    }
    return Picture(
        *("curves", heading, place),
        f"Accuracy of the rollouts in blocks of steps, beside {baseline} on the same seeds. The band is half of the "
        f"paired 95% interval of the difference to either side: where {baseline} leaves it, that interval excludes 0.",
        *columns(numbers | _paired("difference", [block.difference for block in blocks])),
        plot,
        _panels_height(shown),
    )


def prediction_picture(
    correlations: Mapping[str, Estimate], gains: Mapping[str, Paired], found: Estimate, baseline: str, place: str
) -> Picture | Omission:
    """Draw each rule's gain in training over its rank correlation with the true advantages; `found` is their rho."""
    heading = "Does the right credit predict the gain?"
    rules = [rule for rule in correlations if rule in gains]
    if len(rules) < 2:
        return Omission(heading, "fewer than two rules have both a rank correlation and a gain", "prediction")
    x, y = [correlations[rule] for rule in rules], [gains[rule] for rule in rules]

    def plot(axis: Axes, theme: Theme) -> None:
        (across, aside), (up, above) = reach(x), reach(y, 100)
        style = {"color": theme.ink("blue"), "linestyle": "", "marker": "o", "markersize": 4, "linewidth": 0.8}
        axis.errorbar(across, up, xerr=aside, yerr=above, **style)
        for i, (rule, *at) in enumerate(zip(rules, across, up, strict=True)):
            corner = ((4, 4), (-11, 4), (4, -10), (-11, -10))[i % 4]  # rules with about the same numbers stay legible
            axis.annotate(str(i + 1), at, xytext=corner, textcoords="offset points", fontsize=7, color=theme.text)
            axis.plot([], [], " ", label=f"{i + 1}  {rule}")
        axis.set_xscale("symlog", linthresh=0.1)
        axis.axhline(0, color=theme.text, linewidth=0.7)
        axis.set_xlabel("Rank correlation of credit with the true advantage")
        axis.set_xticks((-0.1, 0, 0.1, 0.5), ("-0.1", "0", "0.1", "0.5"))
        axis.minorticks_off()
        axis.set_ylabel(f"Gain over {baseline} (percentage points)")
        axis.grid(linewidth=0.5)

    return Picture(
        *("prediction", heading, place),
        f"Spearman's correlation over {len(rules)} rules: {found.text('.2f')}, with its 95% interval over rules and "
        "seeds. Bars are 95% intervals: across over problems, up over seeds. The scale is linear up to 0.1, then "
        "logarithmic.",
        *columns({"rule": rules, **spread("rank correlation", x), **_paired("gain", y)}),
        plot,
        4.6 + 0.17 * len(rules),
    )


def placement_picture(placements: Mapping[str, Analysis], place: str) -> Picture | Omission:
    heading = "Where the credit goes"
    if not placements:
        return Omission(heading, "no placement was measured", "placement")
    placed = placements.values()
    series = [Series(label, label, ink, list(map(attrgetter(auc), placed))) for label, ink, auc in AUCS]
    aucs = {title: column for each in series for title, column in each.columns.items()}
    return Picture(
        *("placement", heading, place),
        "AUC of token weights after against before the first error of incorrect rollouts, and its controls, with 95% "
        "bootstrap intervals over problems. Weights that merely rise along a rollout move the controls too.",
        *columns({"rule": list(placements), **aucs, "rollouts": [each.errors.rollouts for each in placed]}),
        _rows(placements, series, xlabel="AUC of token weights", line=0.5),
        ENDS + 0.6 + _lines(placements, 0.24),
    )


def profile_picture(placements: Mapping[str, Analysis], place: str) -> Picture | Omission:
    heading = "Weights around the first error"
    shown = {rule: placed.errors.profile for rule, placed in placements.items() if placed.errors.rollouts}
    if not shown:
        return Omission(heading, "no rule has an incorrect rollout whose first error lies inside it", "profile")

    def plot(axis: Axes, theme: Theme) -> None:
        """Draw a panel for each rule, on separate scales."""
        sides = (("omega", "Incorrect rollouts", "vermilion"), ("control", "Correct rollouts, same tokens", "blue"))
        legend = {label: _unmarked(theme, ink) for _, label, ink in sides}
        titles = [wrapped(rule, PANEL) for rule in shown]
        drawn = panels(axis, titles, "Tokens from the error", "Mean weight", COLUMNS, legend, one_scale=False)
        for panel, profile in zip(drawn, shown.values(), strict=True):
            for name, label, ink in sides:
                line(panel, theme, [point.offset for point in profile], [point[name] for point in profile], ink, label)
            panel.axvline(0, color=theme.text, linewidth=0.7)

    offsets = [point for profile in shown.values() for point in profile]
    numbers = {
        "rule": [rule for rule, profile in shown.items() for _ in profile],
        "offset": [point.offset for point in offsets],
        **spread("incorrect", [point.omega for point in offsets]),
        **spread("correct", [point.control for point in offsets]),
    }
    return Picture(
        *("profile", heading, place),
        "Mean weight by distance to the first wrong token of incorrect rollouts, and of the correct rollouts of their "
        "groups at the same tokens, with 95% bootstrap intervals over problems. Scales differ.",
        *columns(numbers),
        plot,
        _panels_height(shown),
    )


def _unmarked(theme: Theme, ink: str) -> dict:
    return line_style(theme, ink) | {"linewidth": 1.4}


def wrapped(rule: str, width: int = 30) -> str:
    """Break a rule's name into lines of at most `width` characters, after slashes, colons and dots where possible.

    >>> print(wrapped("shear/window=4/stride=1/matched", 20))
    shear/window=4/
    stride=1/matched
    """
    return re.sub("([/:.]) ", r"\1", fill(re.sub(r"([/:]|\.(?=[^\W\d]))", r"\1 ", rule), width))


def _rows(rules: Iterable[str], series: Sequence[Series], **more) -> partial:
    return partial(plot_rows, names=[wrapped(rule) for rule in rules], series=series, **more)


def _lines(rules: Iterable[str], least: float = 0.2) -> float:
    """Return the height, in inches, of rows that each hold a rule's name; all rows are as high as the highest."""
    lines = [wrapped(rule).count("\n") + 1 for rule in rules]
    return len(lines) * max(least, LINE * max(lines) + 0.06)


def _panels_height(rules: Iterable[str]) -> float:
    lines = [wrapped(rule, PANEL).count("\n") + 1 for rule in rules]
    return ENDS + -(-len(lines) // COLUMNS) * (1.0 + LINE * max(lines))


def _paired(title: str, differences: Sequence[Paired | None]) -> dict[str, list]:
    """Return the columns of the differences and of their numbers of seeds."""
    seeds = ["" if difference is None else difference.seeds for difference in differences]
    return spread(title, differences) | {f"{title}, seeds": seeds}
