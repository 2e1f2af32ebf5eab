"""All analyses of the two tables: results.json (docs/diagnosis.md), results.md and pictures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas
import torch
from tqdm import tqdm

from openrlhf_shear.credit.shear import pool_spans
from openrlhf_shear.diagnosis import pictures
from openrlhf_shear.diagnosis.analyses.controls import (
    opposing_rollouts,
    position_control,
    quartiles,
    truncation,
    within_problems,
)
from openrlhf_shear.diagnosis.analyses.groups import group_accuracies
from openrlhf_shear.diagnosis.analyses.lags import lagged_changes
from openrlhf_shear.diagnosis.analyses.noise import noise_floor
from openrlhf_shear.diagnosis.analyses.separation import separation
from openrlhf_shear.diagnosis.analyses.steps import omega_and_scores
from openrlhf_shear.diagnosis.analyses.trend import aggregate_trend, stride_changes
from openrlhf_shear.diagnosis.text import TextControl
from openrlhf_shear.diagnosis.verdict import verdict
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, difference
from openrlhf_shear.report.estimates import Estimate, written
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Omission, Results, apart, plain
from openrlhf_shear.report.tables import Table
from openrlhf_shear.rollouts.columns import CONTROL_COLUMNS
from openrlhf_shear.rollouts.contrast import contrast
from openrlhf_shear.rollouts.localisation import first_errors, traces_of
from openrlhf_shear.rollouts.record import Rollout

TITLE = "Does the distance track reasoning quality?"
COUNTED = "Rests on: rows / problems."
CONTROLS_TITLE = "Controls: the same numbers of other distances"
CONTROL_HEADS = ("Other outcome", "Same outcome", "Outcomes in a random order")
CONTROLS_NOTE = (
    "Of prefixes and rollouts that have all three distances, with 95% intervals; weights are of spans alone."
)
TEXT_TITLE = "States or text? The same numbers of hidden states and of n-grams"
TEXT_NOTE = (
    "The difference is hidden states minus text, with a paired 95% interval: both take the same resamples of problems."
)
NO_TEXT = "none was asked (--ngram 0)"
DISTANCES = {"opposing": "distance", **{name: f"{name}_distance" for name in CONTROL_COLUMNS}}  # of prefixes
_NEEDED = ("window", "stride", "completions", "samples_per_prompt")
_UNKNOWN = "the task does not know where a rollout first goes wrong"
_NOTE = (
    "Intervals are percentile bootstraps over problems. The paper's values are of Qwen2.5-Math-7B on MATH500; only a "
    "diagnosis of that model on that data can repeat them."
)


def find(
    prefixes: pandas.DataFrame,
    rollouts: Sequence[Rollout],
    settings: Mapping,
    resamples: int = 1000,
    seed: int = 0,
    steps: pandas.DataFrame | None = None,
    text: TextControl | None = None,
    no_text: str = NO_TEXT,
) -> Results:
    """Run all analyses, with a progress bar on stderr.

    Args:
        prefixes: of `read_prefixes`.
        rollouts: of `read_rollouts`, unmixed groups included.
        settings: of the prefixes. It needs `window`, `stride`, `completions` and `samples_per_prompt`; `problems`, the
            number that was requested, is optional.
        steps: of `read_steps`; None without a process reward model.
        text: of `text_control`; None without the text control, for which `no_text` is the reason.

    Raises:
        ValueError: the settings lack a required name, or resamples is below 1.
    """
    missing = [name for name in _NEEDED if name not in settings]
    if missing:
        raise ValueError(f"the prefixes' settings must have {', '.join(_NEEDED)}: {', '.join(missing)} is missing")
    usable = prefixes[np.isfinite(prefixes["distance"]) & (prefixes["completions"] > 0)].reset_index(drop=True)
    analyses = {}
    with tqdm(
        _makers(usable, rollouts, settings, Bootstrap(resamples, seed), steps, text).items(),
        desc="analyses",
        disable=None,
    ) as bar:
        for name, make in bar:
            bar.set_postfix_str(name)
            analyses[name] = make()
    numbers, beside = _numbers(analyses), _numbers(analyses["text"] or {})
    both = {what: (numbers[what], beside[what], difference(numbers[what], beside[what])) for what in beside}
    tables = [_table(numbers), *([_control_table(analyses["controls"])] if analyses["controls"] else [])]
    tables += [_text_table(text.label, both)] if text else []
    problems = int(usable["problem"].nunique())
    results = {
        "settings": dict(settings),
        "verdict": verdict(analyses, problems, text.label if text else ""),
        "resamples": resamples,
        "seed": seed,
        "problems": problems,
        "prefixes": len(usable),
        "left_out": len(prefixes) - len(usable),
        "incomplete": int((prefixes["completions"] < settings["completions"]).sum()),
        "first_errors_missing": None if analyses["first_errors"] else _UNKNOWN,
        "text_missing": None if text else no_text,
        "numbers": [{"what": what, **plain(estimate)} for what, estimate in numbers.items()],
        "text_numbers": [{"what": w, **plain(t), "difference": plain(less)} for w, (_, t, less) in both.items()],
        "analyses": analyses,
    }
    place = f"{settings.get('model', '')}, {settings.get('dataset', '')}".strip(", ")
    drawn = _drawn(analyses, rollouts, place, text.label if text else "")
    return Results(TITLE, results, tables, _notes(results), *apart(drawn), results["verdict"])


def _makers(
    usable: pandas.DataFrame,
    rollouts: Sequence[Rollout],
    settings: Mapping,
    bootstrap: Bootstrap,
    steps: pandas.DataFrame | None,
    text: TextControl | None,
) -> dict[str, Callable[[], Analysis | None]]:
    per_prompt, asked, window = settings["samples_per_prompt"], settings.get("problems"), settings["window"]
    makers = _of_distance(usable, rollouts, settings, bootstrap)
    measured = usable[np.isfinite(usable[list(DISTANCES.values())]).all(axis=1)]
    largest = max((r.largest_norm for r in rollouts if r.largest_norm and np.isfinite(r.largest_norm)), default=1.0)
    with_controls = {
        "noise": lambda: noise_floor(measured, _errors(rollouts), window, largest, bootstrap),
        "controls": lambda: _controls(measured, rollouts, settings, bootstrap),
    }
    return {
        "groups": lambda: group_accuracies(rollouts, per_prompt, bootstrap, asked),
        **{name: make for name, make in makers.items() if name not in ("lags", "first_errors")},
        "truncation": lambda: truncation(usable, bootstrap),
        **{name: makers[name] for name in ("first_errors", "lags")},
        "steps": lambda: None if steps is None else omega_and_scores(steps, rollouts, bootstrap),
        **{name: make if len(measured) else lambda: None for name, make in with_controls.items()},
        "text": lambda: (
            None if text is None else _text(text, usable, measured.index, rollouts, settings, bootstrap, steps)
        ),
    }


def _of_distance(
    usable: pandas.DataFrame, rollouts: Sequence[Rollout], settings: Mapping, bootstrap: Bootstrap
) -> dict[str, Callable[[], Analysis | None]]:
    """Return, by name, the analyses that depend on the distance."""
    completions, window, stride = settings["completions"], settings["window"], settings["stride"]
    errors = _errors(rollouts)
    return {
        "trend": lambda: aggregate_trend(usable, bootstrap),
        "quartiles": lambda: quartiles(usable, bootstrap),
        "contrast": lambda: contrast(traces_of(rollouts), bootstrap),
        "changes": lambda: stride_changes(usable, completions, stride, bootstrap),
        "separation": lambda: separation(usable, completions, bootstrap),
        "positions": lambda: position_control(usable, bootstrap),
        "within": lambda: within_problems(usable, opposing_rollouts(usable, rollouts), bootstrap),
        "lags": lambda: lagged_changes(usable, errors, window, stride, completions, bootstrap),
        "first_errors": lambda: first_errors(traces_of(rollouts), window, bootstrap) if errors else None,
    }


def _errors(rollouts: Sequence[Rollout]) -> dict[tuple[str, int], int]:
    return {(r.group, r.sample): r.first_error for r in rollouts if r.first_error is not None}


def _controls(
    measured: pandas.DataFrame, rollouts: Sequence[Rollout], settings: Mapping, bootstrap: Bootstrap
) -> Analysis:
    """Return the analyses of each distance by its name, all over the same prefixes and rollouts."""
    columns, made = {"opposing": "span_distances", **CONTROL_COLUMNS}, Analysis()

    def has_all(rollout: Rollout) -> bool:
        return all(np.isfinite(getattr(rollout, column) or [np.nan]).all() for column in columns.values())

    known = [bool(rollout.weights) and has_all(rollout) for rollout in rollouts]
    for kind, column in DISTANCES.items():
        weighed = [
            replace(r, weights=_weights(r, getattr(r, columns[kind]), settings) if measurable else None)
            for r, measurable in zip(rollouts, known, strict=True)
        ]
        makers = _of_distance(measured.assign(distance=measured[column]), weighed, settings, bootstrap)
        made[kind] = Analysis({name: make() for name, make in makers.items()})
    return made


def _text(
    text: TextControl,
    usable: pandas.DataFrame,
    measured: pandas.Index,
    rollouts: Sequence[Rollout],
    settings: Mapping,
    bootstrap: Bootstrap,
    steps: pandas.DataFrame | None,
) -> Analysis:
    """Return the analyses of the text's distances and weights, over the prefixes and rollouts of the main analyses.

    Rows `measured` of the prefixes have control distances, and so a noise.
    """
    at = {(r.group, r.sample): {start: k for k, start in enumerate(r.span_starts or ())} for r in rollouts}
    keys = list(zip(usable["problem"], usable["sample"], strict=True))
    span = [at[key][end - settings["window"]] for key, end in zip(keys, usable["position"], strict=True)]
    ours = [(text.spans[key], k) for key, k in zip(keys, span, strict=True)]
    prefixes = usable.assign(
        distance=[spans.span_distances[k] for spans, k in ours],
        same_distance=[(spans.same_distances or {k: np.nan})[k] for spans, k in ours],
    )
    weighed = [
        replace(r, weights=text.spans[r.group, r.sample].weights)
        if r.weights and (r.group, r.sample) in text.spans
        else r
        for r in rollouts
    ]
    made = Analysis({name: make() for name, make in _of_distance(prefixes, weighed, settings, bootstrap).items()})
    made["steps"] = None if steps is None else omega_and_scores(steps, weighed, bootstrap)
    noise = partial(noise_floor, prefixes.loc[measured], _errors(rollouts), settings["window"], 1.0, bootstrap)
    made["noise"] = noise() if len(measured) else None
    return made


def _weights(rollout: Rollout, distances: Sequence[float], settings: Mapping) -> list[float]:
    starts, pool = torch.tensor(rollout.span_starts), settings.get("pool", "max")
    return pool_spans(torch.tensor(distances), starts, len(rollout.tokens), settings["window"], pool).tolist()


def _drawn(
    analyses: Mapping[str, Analysis], rollouts: Sequence[Rollout], place: str, label: str
) -> Iterator[Picture | Omission]:
    """Yield the pictures. Where the x axis is the distance, the text gets pictures of its own, else a line."""

    def over_distance(of: Mapping[str, Analysis]) -> Iterator[Picture | Omission]:
        yield from pictures.separation_pictures(of["separation"], place)
        yield pictures.positions_picture(of["positions"], place)

    def beside(name: str) -> pictures.Beside:
        return (label, analyses["text"][name]) if analyses["text"] else None

    yield from pictures.trend_pictures(analyses["trend"], place, beside("trend"))
    yield pictures.changes_picture(analyses["changes"], place, beside("changes"))
    yield pictures.lags_picture(analyses["lags"], place, beside("lags"))
    yield from over_distance(analyses)
    for item in over_distance(analyses["text"]) if analyses["text"] else ():
        yield replace(item, name=f"text_{item.name}", heading=f"{item.heading}: {label}")
    yield pictures.groups_picture(analyses["groups"], place)
    yield pictures.profile_picture(analyses["first_errors"], place, beside("first_errors"))
    yield pictures.heatmap_picture(rollouts, place)


def _numbers(analyses: Mapping[str, Analysis | None]) -> dict[str, Estimate]:
    return {what: estimate for made in analyses.values() if made for what, estimate in made.numbers.items()}


def _table(numbers: Mapping[str, Estimate]) -> Table:
    def text(value: float) -> str:
        return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"

    said = dict.fromkeys(estimate.warning for estimate in numbers.values() if estimate.warning)
    warnings = {warning: f"[{i}]" for i, warning in enumerate(said, 1)}
    rows = []
    for what, estimate in numbers.items():
        paper = "-" if estimate.paper is None else text(estimate.paper)
        marked = f"{what} {warnings[estimate.warning]}" if estimate.warning else what
        counted = f"{estimate.rows:,} / {estimate.problems:,}"
        rows.append((marked, written(estimate.value, text), estimate.interval(text), paper, counted))
    notes = [COUNTED, *(f"{mark} {warning}." for warning, mark in warnings.items())]
    return Table("", ("What", "Value", "95% interval", "Paper", "Rests on"), rows, notes)


def _control_table(controls: Analysis) -> Table:
    """Return the table of the numbers that differ between the distances."""
    kinds = [_numbers(kind) for kind in controls.values()]
    rows = [(what, *(of[what].text(".3f") for of in kinds)) for what in kinds[0] if all(what in of for of in kinds)]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Table(CONTROLS_TITLE, ("What", *CONTROL_HEADS), rows, [CONTROLS_NOTE])


def _text_table(label: str, both: Mapping[str, Sequence[Estimate]]) -> Table:
    """Return the table of the numbers that differ between hidden states and text."""
    rows = [(what, *(estimate.text(".3f") for estimate in of)) for what, of in both.items()]
    rows = [row for row in rows if row[1] != row[2]]
    return Table(TEXT_TITLE, ("What", "Hidden states", label.capitalize(), "Difference"), rows, [TEXT_NOTE])


def _notes(results: Mapping) -> list[str]:
    analyses = results["analyses"]
    groups, every = analyses["groups"], analyses["trend"].every
    left_out = {
        "Prefixes left out, without a finite distance or without a verdict": results["left_out"],
        f"Prefixes with fewer verdicts than the {results['settings']['completions']:,} asked for": results[
            "incomplete"
        ],
        "Problems left out, without a sampled rollout": groups.missing,
        "Problems left out, without a graded rollout": groups.left_out,
        f"Positions left out of the trend, reached by fewer than {every.reach} problems": every.left_out,
    }
    notes = [f"Prefixes: {results['prefixes']:,}, of problems: {results['problems']:,}. {_NOTE}"]
    notes += [f"{what}: {number:,}." for what, number in left_out.items() if number]
    if analyses["controls"] is None:
        notes.append("No controls and no noise: these distances were not measured (--controls).")
    if analyses["text"] is None:
        notes.append(f"No text control: {results['text_missing']}.")
    if analyses["steps"] is None:
        notes.append("No numbers of a process reward model: none was asked (--prm).")
    if analyses["first_errors"] is None:
        notes.append(f"No numbers of the first error: {results['first_errors_missing']}.")
    return notes
