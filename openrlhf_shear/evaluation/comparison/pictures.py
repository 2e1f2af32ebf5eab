"""Which pictures the runs can carry: the paper's kinds, each with its numbers, and the reasons for those left out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from openrlhf_shear.evaluation.comparison import figures
from openrlhf_shear.evaluation.comparison.ablations import ablation, group_sizes
from openrlhf_shear.evaluation.comparison.cells import Section, Select
from openrlhf_shear.evaluation.comparison.curves import (
    AVERAGE,
    REWARD,
    averages,
    inks_of,
    place,
    rewards,
    training_curves,
)
from openrlhf_shear.evaluation.comparison.figures import Bar
from openrlhf_shear.evaluation.comparison.methods import SWEEPS
from openrlhf_shear.evaluation.comparison.runs import Run
from openrlhf_shear.evaluation.comparison.tables import numbers
from openrlhf_shear.report.estimates import stat
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Omission


def make_pictures(sections: list[Section], select: Select) -> tuple[list[Picture], list[Omission]]:
    """Every picture that the runs hold, in the paper's order, and why the others are missing."""
    pictures: list[Picture] = []
    omitted: list[Omission] = []

    def add(heading: str, reason: str, made: Iterable[Picture]) -> None:
        before = len(pictures)
        pictures.extend(made)
        if len(pictures) == before:
            omitted.append(Omission(heading, reason))

    evaluated = "no run logs eval/suite/average at two steps that all its seeds share"
    add("Training curves", evaluated, training_curves(sections, "Training curves", averages, AVERAGE))
    rewarded = training_curves(sections, "Rollout reward", rewards, "Rollout reward")
    add("Rollout reward", f"no run logs {REWARD} at two steps that all its seeds share", rewarded)
    for knob, sweep in SWEEPS.items():
        made = group_sizes(sections, select) if knob == "group" else ablation(knob, sections, select)
        reason = f"no two settings of a method differ in {' or '.join(sweep.knobs)} alone and have averages"
        add(sweep.heading, reason, made)
    needs = "needs train/timing/step_total of grpo and of another method on the same backbone and task"
    add("Training time relative to GRPO", needs, _overhead(sections))
    return _unique_names(pictures), omitted


def _unique_names(pictures: list[Picture]) -> list[Picture]:
    taken: dict[str, int] = {}
    unique = []
    for picture in pictures:
        name = re.sub(r"[^a-z0-9.]+", "_", picture.name.lower()).strip("_.")[:80]
        taken[name] = taken.get(name, 0) + 1
        unique.append(replace(picture, name=name if taken[name] == 1 else f"{name}_{taken[name]}"))
    return unique


def _overhead(sections: list[Section]) -> Iterable[Picture]:
    groups: dict[str, list[Bar]] = {}
    labels = {name: variant for section in sections for name, variant in section.rows.items()}
    of_variant = inks_of(labels.values())
    inks = {name: of_variant[id(variant)] for name, variant in labels.items()}
    rows = []
    for section in sections:
        grpo = next((v for v in section.rows.values() if v.method == "grpo"), None)
        base = grpo and stat(_seconds(grpo.runs))
        bars = []
        for name, variant in section.rows.items() if base else ():
            seconds = _seconds(variant.runs)
            if variant is grpo or not seconds or variant.settings.get("group") != grpo.settings.get("group"):
                continue
            value = stat(100 * (own / base.mean - 1) for own in seconds)
            bars.append(Bar(name, inks[name], value, (), f"{value.mean:+.1f}%"))
            rows.append((place(section), name, *numbers(value)))
        if bars:
            groups[place(section).replace(", ", "\n", 1)] = bars
    if not groups:
        return
    yield Picture(
        "training time",
        "Training time relative to GRPO",
        "",
        "Mean seconds a step (train/timing/step_total) against the mean of GRPO's seeds on the same backbone and task; "
        "whiskers: ±1 sample std over seeds. It compares methods only where they ran on the same machines.",
        ("backbone", "method", "overhead %", "std", "seeds"),
        tuple(rows),
        partial(figures.plot_groups, groups=groups, xlabel="Training time over GRPO's (%)"),
        height=1.5 + 0.3 * sum(map(len, groups.values())) + 0.25 * len(groups),
    )


def _seconds(runs: tuple[Run, ...]) -> list[float]:
    return [run.seconds_per_step for run in runs if run.seconds_per_step]
