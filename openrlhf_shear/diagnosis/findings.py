"""All analyses of the two tables: results.json (docs/diagnosis.md), results.md and pictures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas
from tqdm import tqdm

from openrlhf_shear.diagnosis import pictures
from openrlhf_shear.diagnosis.analyses import every
from openrlhf_shear.diagnosis.pictures import heatmap_picture
from openrlhf_shear.diagnosis.text import TextControl
from openrlhf_shear.diagnosis.verdict import verdict
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, difference
from openrlhf_shear.report.estimates import Estimate, written
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Omission, Results, apart, plain
from openrlhf_shear.report.tables import Table
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
    text: TextControl | None = None,
) -> Results:
    """Run all analyses, with a progress bar on stderr.

    Args:
        prefixes: of `read_prefixes`.
        rollouts: of `read_rollouts`, unmixed groups included.
        settings: of the prefixes. It needs `window`, `stride`, `completions` and `samples_per_prompt`; `problems`, the
            number that was requested, is optional.
        text: of `text_control`; None without the text control.

    Raises:
        ValueError: resamples is below 1.
    """
    usable = prefixes[np.isfinite(prefixes["distance"]) & (prefixes["completions"] > 0)].reset_index(drop=True)
    found = every.analyses(usable, rollouts, settings, Bootstrap(resamples, seed), text)
    analyses = dict(tqdm(found, desc="analyses", disable=None))
    numbers, beside = _numbers(analyses), _numbers(analyses["text"] or {})
    shared = [what for what in numbers if what in beside]
    both = {what: (numbers[what], beside[what], difference(numbers[what], beside[what])) for what in shared}
    tables = [_table(numbers)]
    if analyses["controls"]:
        kinds = [_numbers(kind) for kind in analyses["controls"].values()]
        of_kinds = {what: [of[what] for of in kinds] for what in kinds[0] if all(what in of for of in kinds)}
        tables.append(_beside(CONTROLS_TITLE, CONTROL_HEADS, of_kinds, slice(None), CONTROLS_NOTE))
    if text:
        heads = ("Hidden states", text.label.capitalize(), "Difference")
        tables.append(_beside(TEXT_TITLE, heads, both, slice(2), TEXT_NOTE))
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
        "numbers": [{"what": what, **plain(estimate)} for what, estimate in numbers.items()],
        "text_numbers": [{"what": w, **plain(t), "difference": plain(less)} for w, (_, t, less) in both.items()],
        "analyses": analyses,
    }
    place = f"{settings.get('model', '')}, {settings.get('dataset', '')}".strip(", ")
    drawn = _drawn(analyses, rollouts, place, text.label if text else "")
    return Results(TITLE, results, tables, _notes(results), *apart(drawn), results["verdict"])


def _drawn(
    analyses: Mapping[str, Analysis], rollouts: Sequence[Rollout], place: str, label: str
) -> Iterator[Picture | Omission]:
    """Yield the pictures; those whose x axis is the distance once more for the text."""

    def over_distance(of: Mapping[str, Analysis]) -> Iterator[Picture | Omission]:
        yield from pictures.separation_pictures(of["separation"], place)
        yield pictures.positions_picture(of["positions"], place)

    yield from pictures.trend_pictures(analyses["trend"], place)
    yield pictures.changes_picture(analyses["changes"], place)
    yield pictures.lags_picture(analyses["lags"], place)
    yield from over_distance(analyses)
    for item in over_distance(analyses["text"]) if analyses["text"] else ():
        yield replace(item, name=f"text_{item.name}", heading=f"{item.heading}: {label}")
    yield pictures.groups_picture(analyses["groups"], place)
    yield pictures.profile_picture(analyses["first_errors"], place)
    yield heatmap_picture(rollouts, place)


def _numbers(analyses: Mapping[str, Analysis | None]) -> dict[str, Estimate]:
    return {what: estimate for analysis in analyses.values() if analysis for what, estimate in analysis.numbers.items()}


def _marks(estimates: Iterable[Estimate]) -> tuple[dict[str | None, str], list[str]]:
    """Return the mark behind a number by its warning, and the notes that say what the marks mean."""
    warnings = dict.fromkeys(estimate.warning for estimate in estimates if estimate.warning)
    marks = {warning: f" [{i}]" for i, warning in enumerate(warnings, 1)}
    return {None: "", **marks}, [f"{mark.strip()} {warning}." for warning, mark in marks.items()]


def _table(numbers: Mapping[str, Estimate]) -> Table:
    def text(value: float) -> str:
        return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"

    rows, (marks, notes) = [], _marks(numbers.values())
    for what, estimate in numbers.items():
        paper = "-" if estimate.paper is None else text(estimate.paper)
        counted = f"{estimate.rows:,} / {estimate.problems:,}"
        value, interval = written(estimate.value, text), estimate.interval(text)
        rows.append((what + marks[estimate.warning], value, interval, paper, counted))
    return Table("", ("What", "Value", "95% interval", "Paper", "Rests on"), rows, [COUNTED, *notes])


def _beside(
    title: str, heads: Sequence[str], numbers: Mapping[str, Sequence[Estimate]], compared: slice, note: str
) -> Table:
    """Return a table with several estimates of each number, without the rows whose compared estimates are equal."""
    numbers = {what: of for what, of in numbers.items() if len({each.text(".3f") for each in of[compared]}) > 1}
    marks, notes = _marks(estimate for of in numbers.values() for estimate in of)
    rows = [(what, *(each.text(".3f") + marks[each.warning] for each in of)) for what, of in numbers.items()]
    return Table(title, ("What", *heads), rows, [note, *notes])


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
        notes.append("No text control: none was asked (--ngram 0).")
    if analyses["first_errors"] is None:
        notes.append(f"No numbers of the first error: {results['first_errors_missing']}.")
    return notes
