"""All analyses of the two tables, written as results.json (docs/diagnosis.md), results.md and pictures."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas
from tqdm import tqdm

from openrlhf_shear.diagnosis import pictures
from openrlhf_shear.diagnosis.analyses.controls import (
    opposing_rollouts,
    position_control,
    quartiles,
    truncation,
    within_problems,
)
from openrlhf_shear.diagnosis.analyses.groups import group_accuracies
from openrlhf_shear.diagnosis.analyses.separation import separation
from openrlhf_shear.diagnosis.analyses.trend import aggregate_trend, stride_changes
from openrlhf_shear.diagnosis.pictures import heatmap_picture
from openrlhf_shear.diagnosis.verdict import verdict
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap
from openrlhf_shear.report.estimates import Estimate, written
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Findings, Omission, apart, plain
from openrlhf_shear.report.tables import Table
from openrlhf_shear.rollouts.localisation import first_errors, traces_of
from openrlhf_shear.rollouts.record import Rollout

TITLE = "Does the distance track reasoning quality?"
COUNTED = "Rests on: rows / problems."
_NEEDED = ("window", "stride", "completions", "samples_per_prompt")
_UNKNOWN = "the task does not know where a rollout first goes wrong"
_NOTE = (
    "Intervals are percentile bootstraps over problems. The paper's values are of Qwen2.5-Math-7B on MATH500; only a "
    "diagnosis of that model on that data can repeat them."
)


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
    usable = prefixes[np.isfinite(prefixes["distance"]) & (prefixes["completions"] > 0)].reset_index(drop=True)
    analyses = {}
    with tqdm(
        _makers(usable, rollouts, settings, Bootstrap(resamples, seed)).items(), desc="analyses", disable=None
    ) as bar:
        for name, make in bar:
            bar.set_postfix_str(name)
            analyses[name] = make()
    numbers = {what: one for made in analyses.values() if made for what, one in made.numbers.items()}
    problems = int(usable["problem"].nunique())
    results = {
        "settings": dict(settings),
        "verdict": verdict(analyses, problems),
        "resamples": resamples,
        "seed": seed,
        "problems": problems,
        "prefixes": len(usable),
        "left_out": len(prefixes) - len(usable),
        "incomplete": int((prefixes["completions"] < settings["completions"]).sum()),
        "first_errors_missing": None if analyses["first_errors"] else _UNKNOWN,
        "numbers": [{"what": what, **plain(estimate)} for what, estimate in numbers.items()],
        "analyses": analyses,
    }
    place = f"{settings.get('model', '')}, {settings.get('dataset', '')}".strip(", ")
    drawn = _drawn(analyses, rollouts, place)
    return Findings(TITLE, results, [_table(numbers)], _notes(results), *apart(drawn), results["verdict"])


def _makers(
    usable: pandas.DataFrame, rollouts: Sequence[Rollout], settings: Mapping, bootstrap: Bootstrap
) -> dict[str, Callable[[], Analysis | None]]:
    completions, window = settings["completions"], settings["window"]
    per_prompt, asked = settings["samples_per_prompt"], settings.get("problems")
    known = any(rollout.first_error is not None for rollout in rollouts)
    return {
        "groups": lambda: group_accuracies(rollouts, per_prompt, bootstrap, asked),
        "trend": lambda: aggregate_trend(usable, bootstrap),
        "quartiles": lambda: quartiles(usable, bootstrap),
        "changes": lambda: stride_changes(usable, completions, settings["stride"], bootstrap),
        "separation": lambda: separation(usable, completions, bootstrap),
        "positions": lambda: position_control(usable, bootstrap),
        "within": lambda: within_problems(usable, opposing_rollouts(usable, rollouts), bootstrap),
        "truncation": lambda: truncation(usable, bootstrap),
        "first_errors": lambda: first_errors(traces_of(rollouts), window, bootstrap) if known else None,
    }


def _drawn(analyses: Mapping[str, Analysis], rollouts: Sequence[Rollout], place: str) -> Iterator[Picture | Omission]:
    yield from pictures.trend_pictures(analyses["trend"], place)
    yield pictures.changes_picture(analyses["changes"], place)
    yield from pictures.separation_pictures(analyses["separation"], place)
    yield pictures.positions_picture(analyses["positions"], place)
    yield pictures.groups_picture(analyses["groups"], place)
    yield pictures.profile_picture(analyses["first_errors"], place)
    yield heatmap_picture(rollouts, place)


def _table(numbers: Mapping[str, Estimate]) -> Table:
    def text(value: float) -> str:
        return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"

    said = dict.fromkeys(one.warning for one in numbers.values() if one.warning)
    warnings = {warning: f"[{i}]" for i, warning in enumerate(said, 1)}
    rows = []
    for what, one in numbers.items():
        paper = "-" if one.paper is None else text(one.paper)
        marked = f"{what} {warnings[one.warning]}" if one.warning else what
        rows.append((marked, written(one.value, text), one.interval(text), paper, f"{one.rows:,} / {one.problems:,}"))
    notes = [COUNTED, *(f"{mark} {warning}." for warning, mark in warnings.items())]
    return Table("", ("What", "Value", "95% interval", "Paper", "Rests on"), rows, notes)


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
    if analyses["first_errors"] is None:
        notes.append(f"No numbers of the first error: {results['first_errors_missing']}.")
    return notes
