"""Training curves: the mean over seeds with its sample std, of one backbone and task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from openrlhf_shear.evaluation.comparison import figures
from openrlhf_shear.evaluation.comparison.cells import Section, Variant
from openrlhf_shear.evaluation.comparison.figures import Curve
from openrlhf_shear.evaluation.comparison.methods import OTHER_INKS, method_of
from openrlhf_shear.evaluation.comparison.tables import model_title, numbers, task_title
from openrlhf_shear.report.estimates import stat
from openrlhf_shear.report.figures import Picture

REWARD = "train/rollout/reward_mean"
AVERAGE = "Benchmark average (%)"
Series = Callable[[Section, Variant], list[dict[int, float]]]  # one step -> value a seed


def place(section: Section) -> str:
    return f"{task_title(section.task)}, {model_title(section.model)}"


def picture_of(section: Section, name: str, heading: str, *shown, **more) -> Picture:
    """One backbone's and task's; `shown` is the rest of `Picture`, and `pictures` makes the name one of files."""
    name = f"{name} {section.task} {section.model.rstrip('/').rpartition('/')[2]}"
    return Picture(name, heading, place(section), *shown, **more)


def averages(section: Section, variant: Variant) -> list[dict[int, float]]:
    runs = section.averaged(variant)
    return [{e.step: 100 * e.average for e in run.evaluations if e.step is not None} for run in runs]


def rewards(_: Section, variant: Variant) -> list[dict[int, float]]:
    return [dict(run.curves[REWARD]) for run in variant.runs if REWARD in run.curves]


def curve(name: str, ink: str, seeds: list[dict[int, float]]) -> Curve | None:
    """Over the steps that all seeds have, so that no seed's end makes a jump; None below two of them."""
    seeds = [points for points in seeds if points]
    steps = sorted(set.intersection(*map(set, seeds))) if seeds else []
    if len(steps) < 2:
        return None
    label = f"{name} (1 seed)" if len(seeds) == 1 else name
    return Curve(label, ink, {step: stat(points[step] for points in seeds) for step in steps})


def training_curves(sections: list[Section], heading: str, series: Series, unit: str) -> Iterable[Picture]:
    for section in sections:
        inks = inks_of(section.rows.values())
        curves = [curve(name, inks[id(v)], series(section, v)) for name, v in section.rows.items()]
        yield from curves_picture(heading, heading, section, curves, unit)


def curves_picture(
    name: str, heading: str, section: Section, curves: list[Curve | None], unit: str
) -> Iterator[Picture]:
    """One picture; none without a curve."""
    curves = [curve for curve in curves if curve]
    if curves:
        yield picture_of(
            section,
            name,
            heading,
            f"{unit} over training. Line: mean over seeds; band: ±1 sample std. "
            "Steps that not all of a method's seeds have are left out.",
            ("setting", "step", "mean", "std"),
            tuple((one.label, step, *numbers(value)[:2]) for one in curves for step, value in one.points.items()),
            partial(figures.plot_curves, curves=curves, ylabel=unit),
        )


def inks_of(variants: Iterable[Variant]) -> dict[int, str]:
    """A colour for each variant's id; a method keeps its own, and further settings of it take others."""
    inks: dict[int, str] = {}
    for variant in variants:
        own = method_of(variant.method).ink
        if own is None or own in inks.values():
            free = [ink for ink in OTHER_INKS if ink not in inks.values()]
            own = free[0] if free else OTHER_INKS[len(inks) % len(OTHER_INKS)]
        inks[id(variant)] = own
    return inks
