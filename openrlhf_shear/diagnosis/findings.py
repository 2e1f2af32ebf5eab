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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

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
from openrlhf_shear.report import findings as report
from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.report.estimates import Estimate, written
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Omission, made_and_omitted, plain
from openrlhf_shear.report.tables import Table
from openrlhf_shear.rollouts.localisation import FirstErrors, first_errors, traces_of
from openrlhf_shear.rollouts.record import Rollout

ANALYSES = (
    *("groups", "trend", "quartiles", "changes", "separation", "positions", "within", "truncation"),
    "first_errors",
)
_NEEDED = ("window", "stride", "completions", "samples_per_prompt")
NOTE = (
    "Intervals are percentile bootstraps over problems. The paper's values are of Qwen2.5-Math-7B on MATH500; only a "
    "diagnosis of that model on that data can repeat them."
)


@dataclass(frozen=True)
class Findings(report.Findings):
    """What the analyses came to; see the module for what `to_json` makes of it."""

    TITLE: ClassVar = "Does the distance track reasoning quality?"
    FIGURES: ClassVar = (
        *("trend", "trend_correct", "trend_incorrect", "changes", "accuracy", "auc", "densities", "positions"),
        *("groups", "first_error", "heatmap"),
    )

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

    @property
    def numbers(self) -> dict[str, Estimate]:
        """By what they are, in the order of a report."""
        analyses = [getattr(self, name) for name in ANALYSES]
        return {what: estimate for one in analyses if one for what, estimate in one.numbers.items()}

    @property
    def tables(self) -> list[Table]:
        header = ("What", "Value", "95% interval", "Problems", "Rows", "Paper", "Warning")
        rows = [
            (
                what,
                written(estimate.value, _text),
                estimate.interval(_text),
                f"{estimate.problems:,}",
                f"{estimate.rows:,}",
                "not given" if estimate.paper is None else _text(estimate.paper),
                estimate.warning or "",
            )
            for what, estimate in self.numbers.items()
        ]
        return [Table("", header, rows, left=("What", "Warning"))]

    @property
    def notes(self) -> list[str]:
        every, asked = self.trend.every, self.settings["completions"]
        reached = f"Positions left out of the trend, reached by fewer than {every.reach} problems"
        left_out = {
            "Prefixes left out, without a finite distance or without a verdict": self.left_out,
            f"Prefixes with fewer verdicts than the {asked:,} asked for": self.incomplete,
            "Problems left out, without a sampled rollout": self.groups.missing,
            "Problems left out, without a graded rollout": self.groups.left_out,
            reached: every.left_out,
        }
        notes = [f"Prefixes: {self.prefixes:,}, of problems: {self.problems:,}. {NOTE}"]
        notes += [f"{what}: {number:,}." for what, number in left_out.items() if number]
        if self.first_errors is None:
            notes.append(f"No numbers of the first error: {self.first_errors_missing}.")
        return notes

    def to_json(self) -> dict:
        beside = (*ANALYSES, "pictures", "omitted")
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in beside}
        numbers = [{"what": what, **plain(estimate)} for what, estimate in self.numbers.items()]
        return plain(own) | {"numbers": numbers, "analyses": {name: plain(getattr(self, name)) for name in ANALYSES}}


def _text(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


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
    analyses = {}
    with tqdm(makers.items(), desc="analyses", disable=None) as bar:
        for name, make in bar:
            bar.set_postfix_str(name)
            analyses[name] = make()
    drawn = _pictures(analyses, rollouts, f"{settings.get('model', '')}, {settings.get('dataset', '')}".strip(", "))
    return Findings(
        settings=dict(settings),
        resamples=resamples,
        seed=seed,
        problems=int(usable["problem"].nunique()),
        prefixes=len(usable),
        left_out=len(prefixes) - len(usable),
        incomplete=int((prefixes["completions"] < completions).sum()),
        first_errors_missing=None if known else "the task does not know where a rollout first goes wrong",
        **made_and_omitted(drawn),
        **analyses,
    )


def _pictures(analyses: Mapping, rollouts: Sequence[Rollout], place: str) -> list[Picture | Omission]:
    return [
        *pictures.trend_pictures(analyses["trend"], place),
        pictures.changes_picture(analyses["changes"], place),
        *pictures.separation_pictures(analyses["separation"], place),
        pictures.positions_picture(analyses["positions"], place),
        pictures.groups_picture(analyses["groups"], place),
        pictures.profile_picture(analyses["first_errors"], place),
        heatmap_picture(rollouts, place),
    ]
