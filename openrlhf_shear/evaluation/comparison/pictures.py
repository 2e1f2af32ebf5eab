"""The comparison's pictures, in the paper's kinds: those that the runs allow, and the reasons for the others."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from matplotlib.axes import Axes

from openrlhf_shear.evaluation.comparison.cells import (
    OTHER_INKS,
    SWEEPS,
    MethodVariant,
    Section,
    Select,
    choose,
    method_of,
)
from openrlhf_shear.evaluation.comparison.runs import held_out
from openrlhf_shear.evaluation.comparison.tables import model_title, number, numbers, task_title
from openrlhf_shear.report.estimates import Stat, stat
from openrlhf_shear.report.figures import Picture, Theme, line
from openrlhf_shear.report.findings import Omission

REFERENCE_KL = "train/kl"
# heading, unit, the end of its TensorBoard tag, and why it may be missing
HELD_OUT = "Held-out accuracy"  # a picture for each set
LOGGED = (
    ("Rollout reward", "Rollout reward", "train/rollout/reward_mean", ""),
    ("Mixed groups", "Share of the groups (%)", "/mixed_groups", ""),
    ("Loss", "Loss of the policy", "train/policy_loss", ""),
    ("Gradient", "Norm of the gradient", "train/actor_grad_norm", ""),
    ("Response length", "Tokens of a response", "train/rollout/response_length_mean", ""),
    ("KL to the reference", "KL (nats a token)", REFERENCE_KL, "; it is 0 without a reference (--algo.kl.init_coef 0)"),
    ("KL of the update", "KL (nats a token)", "train/ppo_kl", ""),
    ("KL between engines and policy", "KL (nats a token)", "train/vllm_kl", ""),
    ("Entropy of the policy", "Entropy (nats)", "train/entropy_loss", "; --actor.entropy_coef 0 logs it"),
    ("Token weight omega", "Mean weight, mixed groups", "/omega_mean", ""),
    ("Credit share of the step", "Share of the step's time (%)", "/credit_share", ""),
)
AVERAGE = "Benchmark average (%)"
Series = Callable[[Section, MethodVariant], list[dict[int, float]]]  # returns, for each seed, step -> value


def make_pictures(sections: list[Section], select: Select) -> tuple[list[Picture], list[Omission]]:
    """Return every picture that the runs allow, in the paper's order, and why the others are missing."""

    def of_each(draw: Callable[..., Iterator[Picture]], *args) -> list[Picture]:
        return [picture for section in sections for picture in draw(section, *args)]

    shared = "at two steps that all its seeds share"
    curves, time = "Training curves", "Training time relative to GRPO"
    kinds = [(curves, f"no run logs eval/suite/average {shared}", of_each(_training, curves, averages, AVERAGE))]
    every = [run for section in sections for variant in section.variants for run in variant.runs]
    sets = {name: tag for run in every for name, tag in held_out(run.curves).items()}
    accuracies = [(f"{HELD_OUT}, {name}", "Accuracy (%)", sets[name], "") for name in sorted(sets)]
    if not sets:
        kinds.append((HELD_OUT, "no run logs eval/eval_SET_pass1; --eval.dataset logs it", []))
    for heading, unit, tag, why in (*accuracies, *LOGGED):
        pictures = of_each(_training, heading, partial(logged, tag=tag, scale=100 if "%" in unit else 1), unit)
        kinds.append((heading, f"no run logs {tag.lstrip('/')} {shared}{why}", pictures))
    for knob, sweep in SWEEPS.items():
        differ = f"no two settings of a method differ in {' or '.join(sweep.knobs)} alone and have averages"
        kinds.append((sweep.heading, differ, of_each(_ablation, knob, select)))
    needs = "needs train/timing/step_total of grpo and of another method on the same backbone and task"
    kinds.append((time, needs, of_each(_overhead, time)))
    omitted = [Omission(heading, reason) for heading, reason, pictures in kinds if not pictures]
    return _unique_names([picture for _, _, pictures in kinds for picture in pictures]), omitted


def _unique_names(pictures: list[Picture]) -> list[Picture]:
    """Give the pictures unique names that any file system takes."""
    taken: dict[str, int] = {}
    unique = []
    for picture in pictures:
        name = re.sub(r"[^a-z0-9.]+", "_", picture.name.lower()).strip("_.")[:80]
        taken[name] = taken.get(name, 0) + 1
        unique.append(replace(picture, name=name if taken[name] == 1 else f"{name}_{taken[name]}"))
    return unique


def _place(section: Section) -> str:
    return f"{task_title(section.task)}, {model_title(section.model)}"


def _picture(section: Section, name: str, *shown, **more) -> Picture:
    """Return a picture of a backbone and task; `shown` and `more` are the arguments of `Picture` but name and place."""
    name = f"{name} {section.task} {section.model.rstrip('/').rpartition('/')[2]}"
    heading, *rest = shown
    return Picture(name, heading, _place(section), *rest, **more)


# --- curves over training


def averages(section: Section, variant: MethodVariant) -> list[dict[int, float]]:
    runs = section.averaged(variant)
    return [{e.step: 100 * e.average for e in run.evaluations if e.step is not None} for run in runs]


def logged(_: Section, variant: MethodVariant, tag: str, scale: float) -> list[dict[int, float]]:
    """Return a logged metric by seed; a KL that is 0 throughout was not measured."""
    measured = [
        points
        for points in (run.curve(tag) for run in variant.runs)
        if tag != REFERENCE_KL or any(value for _, value in points)
    ]
    return [{step: scale * value for step, value in points} for points in measured]


def _training(section: Section, heading: str, series: Series, unit: str) -> Iterator[Picture]:
    inks = inks_of(section.rows.values())
    lines = [(name, inks[id(variant)], variant) for name, variant in section.rows.items()]
    yield from _curves(section, heading, heading, lines, series, unit)


def _curves(
    section: Section, name: str, heading: str, lines: list[tuple[str, str, MethodVariant]], series: Series, unit: str
) -> Iterator[Picture]:
    """Yield a picture of (label, ink, variant) lines, over the steps that all seeds of a variant share.

    Shared steps avoid a jump where a seed ends. Variants with fewer than two such steps are left out; without any
    variant there is no picture.
    """
    curves, several = [], False
    for label, ink, variant in lines:
        seeds = [points for points in series(section, variant) if points]
        steps = sorted(set.intersection(*map(set, seeds))) if seeds else []
        if len(steps) > 1:
            several |= len(seeds) > 1
            label = f"{label} (1 seed)" if len(seeds) == 1 else label
            curves.append(Curve(label, ink, {step: stat(points[step] for points in seeds) for step in steps}))
    spread = " Line: mean over seeds; band: ±1 sample std. Steps that not all of a method's seeds have are left out."
    if curves:
        yield _picture(
            section,
            name,
            heading,
            f"{unit} over training.{spread if several else ''}",
            ("setting", "step", "mean", "std"),
            tuple((curve.label, step, *numbers(value)[:2]) for curve in curves for step, value in curve.points.items()),
            partial(plot_curves, curves=curves, names=("Training step", unit)),
        )


def inks_of(variants: Iterable[MethodVariant]) -> dict[int, str]:
    """Return ink by a variant's id; a method keeps its ink, and further settings of it take others."""
    inks: dict[int, str] = {}
    for variant in variants:
        own = method_of(variant.method).ink
        if own is None or own in inks.values():
            free = [ink for ink in OTHER_INKS if ink not in inks.values()]
            own = free[0] if free else OTHER_INKS[len(inks) % len(OTHER_INKS)]
        inks[id(variant)] = own
    return inks


# --- ablations


def _sweeps(section: Section, knob: str, select: Select) -> list[list[MethodVariant]]:
    """Return groups of variants of one method with an average that differ only in this sweep's knobs."""
    contexts: dict[str, list[MethodVariant]] = {}
    for variant in section.variants:
        held = {name: value for name, value in variant.settings.items() if name not in SWEEPS[knob].knobs}
        if section.average(variant, select):
            contexts.setdefault(f"{variant.method} {sorted(held.items())}", []).append(variant)

    def order(variant: MethodVariant) -> list[tuple[bool, float]]:  # other values than numbers stay behind them
        values = [variant.settings.get(name) for name in SWEEPS[knob].knobs]
        return [(False, value) if isinstance(value, int | float) else (True, 0) for value in values]

    return [sorted(same, key=order) for same in contexts.values() if len(same) > 1]


def _name(knob: str, variant: MethodVariant) -> str:
    """Return the name of a variant in its ablation."""
    settings = variant.settings
    if knob == "span":
        return f"w = {settings.get('window')}, s = {settings.get('stride')}"
    if knob == "epsilon":
        if spread := settings.get("epsilon_spread"):
            return f"{spread:g} x std(C)"
        value = settings.get("epsilon")
        return f"{value:g}" if value is not None else f"{settings.get('epsilon_rel')} x mean norm"
    return str(settings.get(SWEEPS[knob].knobs[0])).replace("_", " ")


def _ablation(section: Section, knob: str, select: Select) -> Iterator[Picture]:
    for variants in _sweeps(section, knob, select):
        main = [v for v in variants if any(v is row for row in section.rows.values())]  # drawn blue
        group = variants[0].settings.get("group")
        grpo = [v for v in section.variants if v.method == "grpo" and v.settings.get("group") == group]
        base = grpo[0] if len(grpo) == 1 and knob != "group" else None
        if knob == "span":
            yield _span_picture(section, variants, select)
            if len(variants) > len(OTHER_INKS) + 1:
                continue  # too many lines to tell apart; the heatmap has them
        else:
            yield _bars_picture(knob, section, variants, main, base, select)
        spare = iter(OTHER_INKS * len(variants))
        lines = [(_name(knob, v), "blue" if main and v is main[0] else next(spare), v) for v in variants]
        lines += [("GRPO", "gray", base)] if base else []
        yield from _curves(section, f"{knob} curves", f"{SWEEPS[knob].heading}, curves", lines, averages, AVERAGE)


def _bars_picture(
    knob: str,
    section: Section,
    variants: list[MethodVariant],
    main: list[MethodVariant],
    base: MethodVariant | None,
    select: Select,
) -> Picture:
    zero = base and section.average(base, select)
    origin = 100 * zero.mean if zero else 0.0
    bars, rows = [], []
    for variant in variants:
        value, name = section.average(variant, select), _name(knob, variant)
        chosen = (choose(run, select) for run in section.averaged(variant))
        seeds = tuple(100 * evaluation.average - origin for evaluation in chosen if evaluation)
        ink = "blue" if len(main) == 1 and variant is main[0] else "orange"
        bars.append(Bar(name, ink, stat(seeds), seeds, number(value, len(variant.runs))))
        rows.append((name, *numbers(value.percent)))
    if zero:
        rows.append(("GRPO", *numbers(zero.percent)))
    blue = " Blue: the setting of the main table." if len(main) == 1 else ""
    against = f"Zero is GRPO's mean{', the gray band its ±1 std' if zero.std else ''}. " if zero else ""
    xlabel = "Benchmark average minus GRPO's (points)" if zero else AVERAGE
    band = 100 * zero.std if zero and zero.std else None
    return _picture(
        section,
        f"{knob} bars",
        SWEEPS[knob].heading,
        f"{variants[0].title}'s benchmark average, {_selected(select)}; the numbers at the bars are the averages in "
        f"percent. {against}Whiskers: ±1 sample std; dots: seeds.{blue}",
        ("setting", "mean", "std", "seeds"),
        tuple(rows),
        partial(plot_bars, bars=bars, xlabel=xlabel, band=band),
        height=1.35 + 0.42 * len(bars),
    )


def _selected(select: Select) -> str:
    return f"at the {select} checkpoint of each seed" if isinstance(select, str) else f"at step {select}"


def _span_picture(section: Section, variants: list[MethodVariant], select: Select) -> Picture:
    cells = {
        (v.settings["window"], v.settings["stride"]): section.average(v, select).percent
        for v in variants
        if v.settings.get("window") and v.settings.get("stride")
    }
    axes = ("Span length w (tokens)", "Stride s (tokens)", AVERAGE)
    windows, strides = sorted({w for w, _ in cells}), sorted({s for _, s in cells})
    return _picture(
        section,
        "span grid",
        SWEEPS["span"].heading,
        f"{variants[0].title}'s benchmark average, {_selected(select)}; ±1 sample std over seeds.",
        ("w", "s", "mean", "std", "seeds"),
        tuple((w, s, *numbers(cells[w, s])) for w, s in sorted(cells)),
        partial(plot_heatmap, rows=windows, columns=strides, cells=cells, names=axes),
    )


# --- time


def _overhead(section: Section, heading: str) -> Iterator[Picture]:
    """Yield a picture of the methods' times, against that of GRPO with groups of the same size."""
    grpo = next((variant for variant in section.rows.values() if variant.method == "grpo"), None)
    base, inks, bars = grpo and stat(_seconds(grpo)), inks_of(section.rows.values()), []
    for name, variant in section.rows.items() if base else ():
        seeds = tuple(100 * (own / base.mean - 1) for own in _seconds(variant))
        if seeds and variant is not grpo and variant.settings.get("group") == grpo.settings.get("group"):
            value = stat(seeds)
            bars.append(Bar(name, inks[id(variant)], value, seeds, f"{value.mean:+.1f}%"))
    if bars:
        yield _picture(
            section,
            "training time",
            heading,
            "Mean seconds a step (train/timing/step_total) against the mean of GRPO's seeds on the same backbone and "
            "task; whiskers: ±1 sample std over seeds. It compares methods only where they ran on the same machines.",
            ("method", "overhead %", "std", "seeds"),
            tuple((bar.label, *numbers(bar.value)) for bar in bars),
            partial(plot_bars, bars=bars, xlabel="Training time over GRPO's (%)"),
            height=1.35 + 0.42 * len(bars),
        )


def _seconds(variant: MethodVariant) -> list[float]:
    return [run.seconds_per_step for run in variant.runs if run.seconds_per_step]


@dataclass(frozen=True)
class Curve:
    """A curve: x -> mean over seeds, in the axis' unit."""

    label: str
    ink: str
    points: dict[float, Stat]


@dataclass(frozen=True)
class Bar:
    """A bar: `value` and `seeds` in the axis' unit; `text` stands at its end."""

    label: str
    ink: str
    value: Stat
    seeds: tuple[float, ...]
    text: str


def plot_curves(axis: Axes, theme: Theme, curves: list[Curve], names: tuple[str, str]) -> None:
    """Draw lines with bands; markers where there are few points. `names` are the axes' (x, y)."""
    for curve in curves:
        line(axis, theme, list(curve.points), list(curve.points.values()), curve.ink, curve.label)
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.grid(linewidth=0.6)
    axis.xaxis.get_major_locator().set_params(integer=True)


def plot_bars(axis: Axes, theme: Theme, bars: list[Bar], xlabel: str, band: float | None = None) -> None:
    """Draw horizontal bars from 0 with their texts, and a dot for each seed. `band` is the std of the method at 0."""
    places, spreads = range(len(bars)), [bar.value.std or 0 for bar in bars]
    whisker = {"ecolor": theme.text, "capsize": 3, "elinewidth": 1.1}
    style = {"color": [theme.ink(bar.ink) for bar in bars], "height": 0.62, "alpha": theme.fill, "error_kw": whisker}
    shown = axis.barh(places, [bar.value.mean for bar in bars], xerr=spreads, **style)
    axis.bar_label(shown, [bar.text for bar in bars], padding=6, fontsize=9)
    for place, bar in zip(places, bars, strict=True):
        dots = {"color": theme.paper, "markeredgecolor": theme.text, "markersize": 3.6}
        axis.plot(bar.seeds, [place] * len(bar.seeds), "o", **dots)
    axis.margins(x=0.35)  # room for the texts
    axis.set_yticks(places, [bar.label for bar in bars])
    axis.invert_yaxis()
    if band:
        axis.axvspan(-band, band, color=theme.ink("gray"), alpha=0.25, linewidth=0, zorder=0)
    axis.axvline(0, color=theme.text, linewidth=1)
    axis.set_xlabel(xlabel)
    axis.grid(axis="x", linewidth=0.6)


def plot_heatmap(axis: Axes, theme: Theme, rows: list, columns: list, cells: dict[tuple, Stat], names: tuple) -> None:
    """Draw percentages at (row, column), also as text; `names` are the axes' (rows, columns) and the colour bar's."""
    grid = [[cells[r, c].mean if (r, c) in cells else float("nan") for c in columns] for r in rows]
    image = axis.imshow(grid, cmap="cividis", aspect="auto")
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            text, colour = "-", theme.text
            if value := cells.get((row, column)):
                text = f"{value.mean:.1f}" + ("" if value.std is None else f"\n± {value.std:.1f}")
                colour = "white" if image.norm(value.mean) < 0.55 else "black"
            axis.text(j, i, text, ha="center", va="center", color=colour)
    axis.set_yticks(range(len(rows)), rows)
    axis.set_xticks(range(len(columns)), columns)
    axis.set(ylabel=names[0], xlabel=names[1])
    axis.figure.colorbar(image, ax=axis, label=names[2]).outline.set_visible(False)
