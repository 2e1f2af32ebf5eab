"""All analyses of the two tables, and what they are written as: results.json, results.md and pictures.

    {"settings": {"model": ..., ...},           # what the tables were made with
     "resamples": 1000, "seed": 0,
     "problems": 419, "prefixes": 45056,        # that the analyses read
     "left_out": 0,                             # prefixes without a finite distance or without a verdict
     "incomplete": 0,                           # prefixes with fewer verdicts than were asked for
     "first_errors_missing": null,              # or why there is no such analysis
     "numbers": [{"what": "...", "value": -0.42, "low": -0.45, "high": -0.39, "problems": 419, "rows": 20117,
                  "paper": -0.42, "warning": null}, ...],
     "analyses": {"trend": {...}, ...}}         # everything, as the dataclasses of `analyses` name it

The same tables, resamples and seed give the same bytes: results.json holds no time, and of paths only those that the
tables' settings have, as `model` may be one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import numpy as np
import pandas
from tqdm import tqdm

from openrlhf_shear.diagnosis import pictures
from openrlhf_shear.diagnosis.analyses.changes import Changes, stride_changes
from openrlhf_shear.diagnosis.analyses.groups import Groups, group_accuracies
from openrlhf_shear.diagnosis.analyses.positions import PositionControl, position_control
from openrlhf_shear.diagnosis.analyses.separation import Separation, separation
from openrlhf_shear.diagnosis.analyses.trend import Quartiles, Trend, aggregate_trend, quartiles
from openrlhf_shear.diagnosis.analyses.truncation import Truncation, truncation
from openrlhf_shear.diagnosis.analyses.within import WithinProblems, opposing_rollouts, within_problems
from openrlhf_shear.diagnosis.pair_heatmap import heatmap_picture
from openrlhf_shear.report.estimates import Bootstrap, Estimate
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Omission, markdown_table, write_findings_files
from openrlhf_shear.rollouts.localisation import FirstErrors, first_errors, traces_of
from openrlhf_shear.rollouts.record import Rollout

ANALYSES = (
    *("groups", "trend", "quartiles", "changes", "separation", "positions", "within", "truncation"),
    "first_errors",
)
FIGURES = (
    *("trend", "trend_correct", "trend_incorrect", "changes", "accuracy", "auc", "densities", "positions", "groups"),
    *("first_error", "heatmap"),
)
_NEEDED = ("window", "stride", "completions", "samples_per_prompt")
HEADER = ("What", "Value", "95% interval", "Problems", "Rows", "Paper", "Warning")
NOTE = (
    "Intervals are percentile bootstraps over problems. The paper's values are of Qwen2.5-Math-7B on MATH500; only a "
    "diagnosis of that model on that data can repeat them."
)


@dataclass(frozen=True)
class Findings:
    """What the analyses came to; see the module for what `to_json` makes of it."""

    settings: dict
    resamples: int
    seed: int
    problems: int
    prefixes: int
    left_out: int
    incomplete: int
    groups: Groups
    trend: Trend
    quartiles: Quartiles
    changes: Changes
    separation: Separation
    positions: PositionControl
    within: WithinProblems
    truncation: Truncation
    first_errors: FirstErrors | None
    first_errors_missing: str | None
    pictures: list[Picture]
    omitted: list[Omission]

    @property
    def numbers(self) -> dict[str, Estimate]:
        """By what they are, in the order of a report."""
        found = [getattr(self, name) for name in ANALYSES]
        return {what: estimate for one in found if one for what, estimate in one.numbers.items()}

    def to_json(self) -> dict:
        beside = (*ANALYSES, "pictures", "omitted")
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in beside}
        return {
            **plain,
            "numbers": [{"what": what, **vars(estimate)} for what, estimate in self.numbers.items()],
            "analyses": {name: _plain(getattr(self, name)) for name in ANALYSES},
        }


def find(
    prefixes: pandas.DataFrame, rollouts: Sequence[Rollout], settings: Mapping, resamples: int = 1000, seed: int = 0
) -> Findings:
    """All analyses, with a progress bar on stderr.

    Args:
        prefixes: of `read_prefixes`.
        rollouts: of `read_rollouts`, unmixed groups included.
        settings: of the prefixes; `window`, `stride`, `completions` and `samples_per_prompt` are read, and
            `problems`, how many were asked for, where it is there.

    Raises:
        ValueError: the settings lack one of these, or resamples is below 1.
    """
    missing = [name for name in _NEEDED if name not in settings]
    if missing:
        raise ValueError(f"the prefixes' settings must have {', '.join(_NEEDED)}: {', '.join(missing)} is missing")
    bootstrap = Bootstrap(resamples, seed)
    completions, stride = settings["completions"], settings["stride"]
    usable = prefixes[np.isfinite(prefixes["distance"]) & (prefixes["completions"] > 0)].reset_index(drop=True)
    traces, known = traces_of(rollouts), any(rollout.first_error is not None for rollout in rollouts)
    makers = {
        "groups": lambda: group_accuracies(
            rollouts, settings["samples_per_prompt"], bootstrap, asked=settings.get("problems")
        ),
        "trend": lambda: aggregate_trend(usable, bootstrap),
        "quartiles": lambda: quartiles(usable, bootstrap),
        "changes": lambda: stride_changes(usable, completions, stride, bootstrap),
        "separation": lambda: separation(usable, completions, bootstrap),
        "positions": lambda: position_control(usable, bootstrap),
        "within": lambda: within_problems(usable, opposing_rollouts(usable, rollouts), bootstrap),
        "truncation": lambda: truncation(usable, bootstrap),
        "first_errors": lambda: first_errors(traces, settings["window"], bootstrap) if known else None,
    }
    found = {}
    with tqdm(makers.items(), desc="analyses", disable=None) as bar:
        for name, make in bar:
            bar.set_postfix_str(name)
            found[name] = make()
    drawn = _pictures(found, rollouts, f"{settings.get('model', '')}, {settings.get('dataset', '')}".strip(", "))
    return Findings(
        settings=dict(settings),
        resamples=resamples,
        seed=seed,
        problems=int(usable["problem"].nunique()),
        prefixes=len(usable),
        left_out=len(prefixes) - len(usable),
        incomplete=int((prefixes["completions"] < completions).sum()),
        first_errors_missing=None if known else "the task does not know where a rollout first goes wrong",
        pictures=[one for one in drawn if isinstance(one, Picture)],
        omitted=[one for one in drawn if isinstance(one, Omission)],
        **found,
    )


def _pictures(found: Mapping, rollouts: Sequence[Rollout], place: str) -> list[Picture | Omission]:
    return [
        *pictures.trend_pictures(found["trend"], place),
        pictures.changes_picture(found["changes"], place),
        *pictures.separation_pictures(found["separation"], place),
        pictures.positions_picture(found["positions"], place),
        pictures.groups_picture(found["groups"], place),
        pictures.profile_picture(found["first_errors"], place),
        heatmap_picture(rollouts, place),
    ]


def write_findings(findings: Findings, folder: str | Path) -> list[Path]:
    """Write results.json, results.md and the pictures; returns their paths (`write_findings_files`)."""
    return write_findings_files(folder, findings.to_json(), _markdown(findings), findings.pictures, FIGURES)


def print_findings(findings: Findings) -> None:
    """One row a number, on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for title in HEADER:
        table.add_column(title, justify="left" if title in ("What", "Warning") else "right", overflow="fold")
    for row in table_rows(findings):
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table, markup=False)
    for line in _notes(findings):
        console.print(line, markup=False)


def table_rows(findings: Findings) -> list[tuple[str, ...]]:
    """The numbers as text, in the columns of `HEADER`."""
    return [
        (
            what,
            _text(estimate.value),
            "" if estimate.low is None else f"{_text(estimate.low)} to {_text(estimate.high)}",
            f"{estimate.problems:,}",
            f"{estimate.rows:,}",
            "not given" if estimate.paper is None else _text(estimate.paper),
            estimate.warning or "",
        )
        for what, estimate in findings.numbers.items()
    ]


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def _notes(findings: Findings) -> list[str]:
    notes = [f"Prefixes: {findings.prefixes:,}, of problems: {findings.problems:,}. {NOTE}"]
    if findings.left_out:
        notes.append(f"Prefixes left out, without a finite distance or without a verdict: {findings.left_out:,}.")
    if findings.incomplete:
        asked = findings.settings["completions"]
        notes.append(f"Prefixes with fewer verdicts than the {asked:,} asked for: {findings.incomplete:,}.")
    if findings.groups.missing:
        notes.append(f"Problems left out, without a sampled rollout: {findings.groups.missing:,}.")
    if findings.groups.left_out:
        notes.append(f"Problems left out, without a graded rollout: {findings.groups.left_out:,}.")
    trend = findings.trend.every
    if trend.left_out:
        notes.append(
            f"Positions left out of the trend, reached by fewer than {trend.reach} problems: {trend.left_out:,}."
        )
    if findings.first_errors is None:
        notes.append(f"No numbers of the first error: {findings.first_errors_missing}.")
    notes += [f"No picture {one.heading!r}: {one.reason}." for one in findings.omitted]
    return notes


def _markdown(findings: Findings) -> str:
    table = markdown_table(HEADER, table_rows(findings), ("What", "Warning")) + "\n"
    settings = ", ".join(f"{name} {value}" for name, value in findings.settings.items())
    return "\n\n".join(["# Does the distance track reasoning quality?", settings, table, *_notes(findings)]) + "\n"


def _plain(value: object) -> object:
    """As JSON takes it; tables that are there for pictures are left out."""
    if is_dataclass(value):
        held = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: _plain(one) for name, one in held.items() if not isinstance(one, pandas.DataFrame)}
    return [_plain(one) for one in value] if isinstance(value, list) else value
