"""Which pictures the runs can carry: the paper's kinds, each with its numbers, and the reasons for those left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from openrlhf_shear.evaluation.comparison import figures
from openrlhf_shear.evaluation.comparison.cells import OTHER_INKS, SWEEPS, Section, Select, Variant, choose, method_of
from openrlhf_shear.evaluation.comparison.figures import Bar, Curve
from openrlhf_shear.evaluation.comparison.tables import model_title, number, numbers, task_title
from openrlhf_shear.report.estimates import stat
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Omission

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


def _sweeps(section: Section, knob: str, select: Select) -> Iterable[list[Variant]]:
    """Variants of one method that have an average and differ in this sweep's knobs alone."""
    contexts: dict[str, list[Variant]] = {}
    for variant in section.variants:
        held = {name: value for name, value in variant.settings.items() if name not in SWEEPS[knob].knobs}
        if section.average(variant, select):
            contexts.setdefault(f"{variant.method} {sorted(held.items())}", []).append(variant)
    return [sorted(same, key=lambda v: _order(knob, v)) for same in contexts.values() if len(same) > 1]


def _order(knob: str, variant: Variant) -> tuple:
    values = [variant.settings.get(name) for name in SWEEPS[knob].knobs]
    order = SWEEPS[knob].order
    known = [order.index(value) if value in order else value for value in values]
    return tuple(
        (0, value, "") if isinstance(value, int | float) else (1 + (value is None), 0, str(value)) for value in known
    )


def _name(knob: str, variant: Variant) -> str:
    """What a variant is called in its ablation."""
    settings = variant.settings
    if knob == "span":
        return f"w = {settings.get('window')}, s = {settings.get('stride')}"
    if knob == "epsilon":
        value = settings.get("epsilon")
        return f"{value:g}" if value is not None else f"{settings.get('epsilon_rel')} x mean norm"
    return str(settings.get(SWEEPS[knob].knobs[0])).replace("_", " ")


def _baseline(section: Section, variants: list[Variant]) -> Variant | None:
    """GRPO with the same group size."""
    group = variants[0].settings.get("group")
    same = [v for v in section.variants if v.method == "grpo" and v.settings.get("group") == group]
    return same[0] if len(same) == 1 else None


def ablation(knob: str, sections: list[Section], select: Select) -> Iterable[Picture]:
    for section in sections:
        for variants in _sweeps(section, knob, select):
            if knob == "span":
                yield from _span_pictures(section, variants, select)
                if len(variants) > len(OTHER_INKS) + 1:
                    continue  # more lines than anyone can tell apart; the heatmap has them
            else:
                yield _bars_picture(knob, section, variants, select)
            main, spare = _main(section, variants), iter(OTHER_INKS * len(variants))
            inks = ["blue" if main and v is main[0] else next(spare) for v in variants]
            lines = [(_name(knob, v), ink, v) for v, ink in zip(variants, inks, strict=True)]
            if base := _baseline(section, variants):
                lines.append(("GRPO", "gray", base))
            curves = [curve(name, ink, averages(section, v)) for name, ink, v in lines]
            yield from curves_picture(f"{knob} curves", f"{SWEEPS[knob].heading}, curves", section, curves, AVERAGE)


def _main(section: Section, variants: list[Variant]) -> list[Variant]:
    """Those that are rows of the main table; the setting of the main table is blue."""
    return [v for v in variants if any(v is row for row in section.rows.values())]


def _bars_picture(knob: str, section: Section, variants: list[Variant], select: Select) -> Picture:
    base = _baseline(section, variants)
    zero = base and section.average(base, select)
    origin = 100 * zero.mean if zero else 0.0
    main = _main(section, variants)
    bars, rows = [], []
    for variant in variants:
        value, name = section.average(variant, select), _name(knob, variant)
        chosen = (choose(run, select) for run in section.averaged(variant))
        seeds = tuple(100 * one.average - origin for one in chosen if one)
        ink = "blue" if len(main) == 1 and variant is main[0] else "orange"
        bars.append(Bar(name, ink, stat(seeds), seeds, number(value, len(variant.runs))))
        rows.append((name, *numbers(value.percent)))
    if zero:
        rows.append(("GRPO", *numbers(zero.percent)))
    blue = " Blue: the setting of the main table." if len(main) == 1 else ""
    against = f"Zero is GRPO's mean{', the gray band its ±1 std' if zero.std else ''}. " if zero else ""
    xlabel = "Benchmark average minus GRPO's (points)" if zero else AVERAGE
    band = 100 * zero.std if zero and zero.std else None
    return picture_of(
        section,
        f"{knob} bars",
        SWEEPS[knob].heading,
        f"{variants[0].title}'s benchmark average, {_selected(select)}; the numbers at the bars are the averages in "
        f"percent. {against}Whiskers: ±1 sample std; dots: seeds.{blue}",
        ("setting", "mean", "std", "seeds"),
        tuple(rows),
        partial(figures.plot_bars, bars=bars, xlabel=xlabel, band=band),
        height=1.35 + 0.42 * len(bars),
    )


def _selected(select: Select) -> str:
    return f"at the {select} checkpoint of each seed" if isinstance(select, str) else f"at step {select}"


def _span_pictures(section: Section, variants: list[Variant], select: Select) -> Iterable[Picture]:
    cells = {
        (v.settings["window"], v.settings["stride"]): section.average(v, select).percent
        for v in variants
        if v.settings.get("window") and v.settings.get("stride")
    }
    windows, strides = sorted({w for w, _ in cells}), sorted({s for _, s in cells})
    axes = ("Span length w (tokens)", "Stride s (tokens)", AVERAGE)
    shown = (
        f"{variants[0].title}'s benchmark average, {_selected(select)}; ±1 sample std over seeds.",
        ("w", "s", "mean", "std", "seeds"),
        tuple((w, s, *numbers(cells[w, s])) for w, s in sorted(cells)),
    )
    heat = partial(figures.plot_heatmap, rows=windows, columns=strides, cells=cells, names=axes)
    yield picture_of(section, "span grid", SWEEPS["span"].heading, *shown, heat)
    inks = ("blue", *OTHER_INKS)
    lines = [
        (f"w = {w}", inks[i % len(inks)], [(s, cells[w, s]) for s in strides if (w, s) in cells])
        for i, w in enumerate(windows)
    ]
    plot = partial(figures.plot_lines, lines=lines, names=axes[1:])
    yield picture_of(section, "span lines", "Stride at each span length", *shown, plot)


def group_sizes(sections: list[Section], select: Select) -> Iterable[Picture]:
    """All methods that were run with several group sizes, together."""
    for section in sections:
        swept = [variants for variants in _sweeps(section, "group", select) if variants[0].settings.get("group")]
        if not swept:
            continue
        inks = inks_of(variants[0] for variants in swept)
        lines = [
            (of[0].title, inks[id(of[0])], [(v.settings["group"], section.average(v, select).percent) for v in of])
            for of in swept
        ]
        yield picture_of(
            section,
            "group lines",
            SWEEPS["group"].heading,
            f"Benchmark average, {_selected(select)}; ±1 sample std over seeds.",
            ("method", "G", "mean", "std", "seeds"),
            tuple((title, size, *numbers(value)) for title, _, points in lines for size, value in points),
            partial(figures.plot_lines, lines=lines, names=("Group size G (rollouts a prompt)", AVERAGE)),
        )
        variants = [v for of_method in swept for v in of_method]
        inks = inks_of(variants)
        curves = [curve(f"{v.title}, G = {v.settings['group']}", inks[id(v)], averages(section, v)) for v in variants]
        yield from curves_picture("group curves", f"{SWEEPS['group'].heading}, curves", section, curves, AVERAGE)


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
