"""Which pictures the runs can carry: the paper's kinds, each with its numbers, and the reasons for those left out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from openrlhf_shear.evaluation.comparison import figures
from openrlhf_shear.evaluation.comparison.ablations import ablation, group_sizes
from openrlhf_shear.evaluation.comparison.cells import Section, Select, Variant
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
from openrlhf_shear.evaluation.comparison.tables import numbers
from openrlhf_shear.report.estimates import stat
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Omission


def make_pictures(sections: list[Section], select: Select) -> tuple[list[Picture], list[Omission]]:
    """Every picture that the runs hold, in the paper's order, and why the others are missing."""
    shared = "at two steps that all its seeds share"
    curves, reward, time = "Training curves", "Rollout reward", "Training time relative to GRPO"
    kinds = [
        (curves, f"no run logs eval/suite/average {shared}", training_curves(sections, curves, averages, AVERAGE)),
        (reward, f"no run logs {REWARD} {shared}", training_curves(sections, reward, rewards, reward)),
    ]
    for knob, sweep in SWEEPS.items():
        made = group_sizes(sections, select) if knob == "group" else ablation(knob, sections, select)
        differ = f"no two settings of a method differ in {' or '.join(sweep.knobs)} alone and have averages"
        kinds.append((sweep.heading, differ, made))
    needs = "needs train/timing/step_total of grpo and of another method on the same backbone and task"
    kinds.append((time, needs, _overhead(sections, time)))
    made = [(heading, reason, list(pictures)) for heading, reason, pictures in kinds]
    omitted = [Omission(heading, reason) for heading, reason, pictures in made if not pictures]
    return _unique_names([picture for _, _, pictures in made for picture in pictures]), omitted


def _unique_names(pictures: list[Picture]) -> list[Picture]:
    """With names that any file system takes."""
    taken: dict[str, int] = {}
    unique = []
    for picture in pictures:
        name = re.sub(r"[^a-z0-9.]+", "_", picture.name.lower()).strip("_.")[:80]
        taken[name] = taken.get(name, 0) + 1
        unique.append(replace(picture, name=name if taken[name] == 1 else f"{name}_{taken[name]}"))
    return unique


def _overhead(sections: list[Section], heading: str) -> Iterable[Picture]:
    groups: dict[str, list[Bar]] = {}
    labels = {name: variant for section in sections for name, variant in section.rows.items()}
    inks = inks_of(labels.values())
    rows = []
    for section in sections:
        grpo = next((v for v in section.rows.values() if v.method == "grpo"), None)
        base = grpo and stat(_seconds(grpo))
        bars = []
        for name, variant in section.rows.items() if base else ():
            seconds = _seconds(variant)
            if variant is grpo or not seconds or variant.settings.get("group") != grpo.settings.get("group"):
                continue
            value = stat(100 * (own / base.mean - 1) for own in seconds)
            bars.append(Bar(name, inks[id(labels[name])], value, (), f"{value.mean:+.1f}%"))
            rows.append((place(section), name, *numbers(value)))
        if bars:
            groups[place(section).replace(", ", "\n", 1)] = bars
    if not groups:
        return
    yield Picture(
        "training time",
        heading,
        "",
        "Mean seconds a step (train/timing/step_total) against the mean of GRPO's seeds on the same backbone and task; "
        "whiskers: ±1 sample std over seeds. It compares methods only where they ran on the same machines.",
        ("backbone", "method", "overhead %", "std", "seeds"),
        tuple(rows),
        partial(figures.plot_groups, groups=groups, xlabel="Training time over GRPO's (%)"),
        height=1.5 + 0.3 * sum(map(len, groups.values())) + 0.25 * len(groups),
    )


def _seconds(variant: Variant) -> list[float]:
    return [run.seconds_per_step for run in variant.runs if run.seconds_per_step]
