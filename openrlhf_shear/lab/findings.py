"""Findings of the lab's runs and placements: results.json (docs/credit-lab.md), results.md and pictures.

The notes of the table of rules state the limits of its intervals.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from openrlhf_shear.config.names import titled
from openrlhf_shear.lab import pictures
from openrlhf_shear.lab.placement import placement_table
from openrlhf_shear.lab.settings import TASKS
from openrlhf_shear.lab.worth import BLOCK, EVALUATED, LabRun, Worth, curve, worths
from openrlhf_shear.report.bootstrap import Analysis
from openrlhf_shear.report.estimates import FEW_PAIRS, POWER, Paired, Stat
from openrlhf_shear.report.findings import Results, apart, plain
from openrlhf_shear.report.provenance import distinct
from openrlhf_shear.report.tables import Table

MATCHED = (
    "Matched is the rule's own mass-matched control: uniform weights. Incorrect and correct rollouts are each scaled "
    "by one constant a step so that the total negative and positive credit equal the rule's. Shuffled is the rule's "
    "own weights, shuffled within each rollout."
)
ACCURACIES = (
    "Accuracies in percent, ± the sample std over seeds: final on held-out problems after the last step, mean over the "
    "rollouts of all steps, evaluations over those of --eval-every. Differences in percentage points with 95% "
    "intervals (t, paired over seeds: equal seeds have equal problems and sampling seeds)."
)


def worth_table(worths: Sequence[Worth], baseline: str) -> Table:
    """Return a row for each rule; columns without any entry are left out."""
    roles = {"baseline": baseline, "matched": "matched", "shuffled": "shuffled", "shear": "shear"}
    columns = {
        "Rule": [worth.rule for worth in worths],
        "Seeds": [f"{len(worth.seeds)}" for worth in worths],
        "Final accuracy": [_percent(worth.final) for worth in worths],
        f"Final over {baseline}": [_difference(worth, "baseline", "final") for worth in worths],
        "Mean accuracy": [_percent(worth.mean) for worth in worths],
        **{f"Mean over {name}": [_difference(worth, role, "mean") for worth in worths] for role, name in roles.items()},
        "Evaluations": [_percent(worth.evaluated) if worth.evaluated else "" for worth in worths],
        **{
            f"Evaluations over {name}": [_difference(worth, role, "evaluated") for worth in worths]
            for role, name in roles.items()
        },
        "Smallest effect": [_detectable(worth) for worth in worths],
    }
    filled = {title: cells for title, cells in columns.items() if any(cells)}
    return Table("What it is worth", tuple(filled), list(zip(*filled.values(), strict=True)), _notes(worths, baseline))


def _notes(worths: Sequence[Worth], baseline: str) -> list[str]:
    means = {worth.rule: {role: versus.mean for role, versus in worth.against.items()} for worth in worths}
    finals = [worth.against["baseline"].final for worth in worths if "baseline" in worth.against]
    evaluated = [of[EVALUATED] for worth in worths for of in worth.against.values() if EVALUATED in of]
    differences = [*finals, *evaluated, *(mean for of in means.values() for mean in of.values())]
    shown = sum(difference.low is not None for difference in differences)
    if not shown:
        return [f"No rule shares seeds with {baseline} or with its control, so nothing is compared."]
    notes = [
        ACCURACIES,
        f"The table has {'one such interval' if shown == 1 else f'{shown} such intervals'}. One in twenty such "
        f"intervals misses the true difference by chance, here about {shown / 20:.1f}: an interval that just excludes "
        "0 is a reason for fresh seeds.",
        *([MATCHED] if any({"matched", "shuffled"} & set(of) for of in means.values()) else []),
        f"Smallest effect: the true difference to {baseline} in mean accuracy, in percentage points, that as many "
        f"seeds with this spread would have shown with {POWER:.0%} power.",
    ]

    def rules(kind) -> str:
        return ", ".join(rule for rule, of in means.items() if any(map(kind, of.values())))

    few = rules(lambda mean: mean.seeds < FEW_PAIRS)
    if few:
        notes.append(f"Warning: fewer than {FEW_PAIRS} pairs of seeds, so intervals mean little, if any: {few}.")
    still = rules(lambda mean: mean.low == mean.high is not None)
    if still:
        notes.append(f"Warning: all pairs differ alike, so an interval says nothing: {still}.")
    return notes


def _percent(accuracy: Stat) -> str:
    return f"{accuracy.mean:.1%}" + ("" if accuracy.std is None else f" ± {100 * accuracy.std:.1f}")


def _difference(worth: Worth, role: str, measure: str) -> str:
    """Return the difference to a role's rule, with its number of pairs if below the rule's seeds; empty without it."""
    if measure not in worth.against.get(role, ()):
        return ""
    difference: Paired = worth.against[role][measure]
    interval = difference.interval(points) or "no interval"
    pairs = "" if difference.seeds == len(worth.seeds) else f", n = {difference.seeds}"
    return f"{points(difference.mean)} ({interval}{pairs})"


def points(value: float) -> str:
    """Return percentage points with a sign, never -0.0."""
    return f"{round(100 * value, 1) + 0.0:+.1f}"


def _detectable(worth: Worth) -> str:
    detectable = worth.against["baseline"].mean.detectable if "baseline" in worth.against else None
    return "" if detectable is None else f"{100 * detectable:.1f}"


def find(
    runs: Iterable[LabRun],
    placements: Mapping[str, Analysis],
    settings: Mapping,
    baseline: str = "uniform",
) -> Results:
    """Return the numbers of both tables and the pictures.

    Args:
        runs: in the order in which to show the rules; rules may have different seeds.
        placements: rule -> its `placement` on the fixed rollouts, in the order to be shown.
        settings: of the task and the trainer, as JSON values.
        baseline: the rule to compare all others with; without runs of it nothing is compared.

    Raises:
        ValueError: a rule has a seed twice; paired runs differ in their number of steps.
    """
    runs = list(runs)
    compared = worths(runs, baseline)
    curves = {worth.rule: curve(runs, worth.rule, baseline) for worth in compared if worth.rule != baseline}
    task = f"built-in {settings.get('task', TASKS[0])}"
    place = _place(task, runs)
    results = {"settings": dict(settings), "baseline": baseline, "block": BLOCK}
    results["made"] = distinct(run.made for run in runs)
    results["rules"] = [
        {
            **plain(worth),
            "runs": [
                {"seed": run.seed, "final": run.final, "mean": run.mean}
                for run in sorted(runs, key=lambda run: run.seed)
                if run.rule == worth.rule
            ],
            "curve": curves.get(worth.rule, []),
        }
        for worth in compared
    ]
    names = list(dict.fromkeys([*(worth.rule for worth in compared), *placements]))
    titles = dict(zip(names, titled(names), strict=True))
    results |= {"placements": placements}
    placements = {titles[rule]: placed for rule, placed in placements.items()}
    compared = [replace(worth, rule=titles[worth.rule]) for worth in compared]
    curves, baseline = {titles[rule]: blocks for rule, blocks in curves.items()}, titles.get(baseline, baseline)
    tables = [placement_table(placements)] if placements else []
    tables += [worth_table(compared, baseline)] if runs else []
    drawn = [
        pictures.placement_picture(placements, task),
        pictures.profile_picture(placements, task),
        pictures.worth_picture(compared, baseline, place),
        pictures.curves_picture(curves, baseline, place),
    ]
    return Results("Credit lab", results, tables, [], *apart(drawn))


def _place(task: str, runs: list[LabRun]) -> str:
    """Return the basis of a picture: "built-in arithmetic, 10 seeds, 60 steps"."""
    if not runs:
        return task
    seeds, steps = Counter(run.rule for run in runs).values(), [len(run.accuracy) for run in runs]
    return f"{task}, {_range(seeds, 'seed')}, {_range(steps, 'step')}"


def _range(values: Iterable[int], name: str) -> str:
    least, most = min(values), max(values)
    return (f"{least}" if least == most else f"{least} to {most}") + f" {name}{'' if most == 1 else 's'}"
