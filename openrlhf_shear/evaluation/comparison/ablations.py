"""Ablations: settings of a method that differ in one thing, as bars against GRPO, as a grid, and as curves."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from openrlhf_shear.evaluation.comparison import figures
from openrlhf_shear.evaluation.comparison.cells import Section, Select, Variant, choose
from openrlhf_shear.evaluation.comparison.curves import AVERAGE, averages, curve, curves_picture, inks_of, picture_of
from openrlhf_shear.evaluation.comparison.figures import Bar
from openrlhf_shear.evaluation.comparison.methods import OTHER_INKS, SWEEPS
from openrlhf_shear.evaluation.comparison.tables import number, numbers
from openrlhf_shear.report.estimates import stat
from openrlhf_shear.report.figures import Picture


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
