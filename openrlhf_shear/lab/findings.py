"""What the lab's runs and placements come to, and what they are written as: results.json, results.md and pictures.

    {"settings": {...}, "baseline": "uniform", "block": 5,     # steps of a block of a learning curve
     "rules": [{"rule": "shear", "seeds": [0, 1, ...],
                "final": {"mean": 0.66, "std": 0.02, "n": 10}, "mean": {...},        # over seeds
                "metrics": {"negative_credit": {...}, ...},
                "against": {"baseline": {"against": "uniform",
                                         "final": {"mean": 0.01, "low": -0.01, "high": 0.03, "seeds": 10,
                                                   "detectable": 0.02, "warning": null},
                                         "mean": {...}},
                            "matched": {...}, "shuffled": {...}, "shear": {...}},    # those that there are
                "runs": [{"seed": 0, "final": 0.65, "mean": 0.52}, ...],
                "curve": [{"first": 1, "last": 5, "mean": 0.4, "baseline": 0.39, "difference": {...}}, ...]}, ...],
     "placements": {"shear": {...}, ...}}                      # as `Placement` names it

Accuracies are fractions. The same runs and placements give the same bytes; no time is in them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path

from openrlhf_shear.lab import pictures
from openrlhf_shear.lab.figures import wrapped
from openrlhf_shear.lab.placement import Placement
from openrlhf_shear.lab.records import Run
from openrlhf_shear.lab.tables import Table, placement_table, worth_table
from openrlhf_shear.lab.worth import Block, Worth, curve, worths
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Omission, markdown_table, write_findings_files

FIGURES = ("placement", "profile", "worth", "curves")


@dataclass(frozen=True)
class Findings:
    """What the runs came to; see the module for what `to_json` makes of it.

    Attributes:
        curves: rule -> blocks of its learning curve; of all rules but the baseline.
    """

    settings: dict
    baseline: str
    block: int
    runs: list[Run]
    worths: list[Worth]
    curves: dict[str, list[Block]]
    placements: dict[str, Placement]
    pictures: list[Picture]
    omitted: list[Omission]

    @property
    def tables(self) -> list[Table]:
        found = (placement_table(self.placements), worth_table(self.worths, self.baseline))
        return [table for table in found if table]

    def to_json(self) -> dict:
        plain = {"settings": self.settings, "baseline": self.baseline, "block": self.block}
        rules = [
            {
                **asdict(one),
                "runs": [
                    {"seed": run.seed, "final": run.final, "mean": run.mean}
                    for run in sorted(self.runs, key=lambda run: run.seed)
                    if run.rule == one.rule
                ],
                "curve": [asdict(block) for block in self.curves.get(one.rule, [])],
            }
            for one in self.worths
        ]
        placements = {rule: asdict(found) for rule, found in self.placements.items()}
        return _strict({**plain, "rules": rules, "placements": placements})


def find(
    runs: Iterable[Run],
    placements: Mapping[str, Placement],
    settings: Mapping,
    baseline: str = "uniform",
    block: int = 5,
) -> Findings:
    """Both tables' numbers and the pictures.

    Args:
        runs: in the order in which rules are to be shown; rules may have different seeds.
        placements: rule -> its `placement` on the fixed rollouts, in the order to be shown.
        settings: of the task and the trainer, as JSON takes them.
        baseline: the rule that all others are compared with; without runs of it nothing is.
        block: steps of a block of the learning curves.

    Raises:
        ValueError: block is below 1; a rule has a seed twice; paired runs differ in their steps.
    """
    runs, placements = list(runs), dict(placements)
    found = worths(runs, baseline)
    curves = {one.rule: curve(runs, one.rule, baseline, block) for one in found if one.rule != baseline}
    place = _place(runs)
    drawn = [
        pictures.placement_picture(placements, "built-in arithmetic"),
        pictures.profile_picture(placements, "built-in arithmetic"),
        pictures.worth_picture(found, baseline, place),
        pictures.curves_picture(curves, baseline, place),
    ]
    return Findings(
        settings=dict(settings),
        baseline=baseline,
        block=block,
        runs=runs,
        worths=found,
        curves=curves,
        placements=placements,
        pictures=[one for one in drawn if isinstance(one, Picture)],
        omitted=[one for one in drawn if isinstance(one, Omission)],
    )


def write_findings(findings: Findings, folder: str | Path) -> list[Path]:
    """Write results.json, results.md and the pictures; returns their paths (`write_findings_files`)."""
    return write_findings_files(folder, findings.to_json(), _markdown(findings), findings.pictures, FIGURES)


def print_findings(findings: Findings) -> None:
    """Both tables and their notes, on stdout."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 200)
    for table in findings.tables:
        shown = RichTable(title=table.title, show_lines=True)
        for title in table.header:
            shown.add_column(title, justify="left" if title == "Rule" else "right", overflow="fold")
        for row in table.rows:
            rule, *cells = row
            shown.add_row(Text(wrapped(rule)), *(Text(cell.replace(" (", "\n(", 1)) for cell in cells))
        console.print(shown)
        for note in table.notes:
            console.print(note, markup=False, highlight=False)
    for one in findings.omitted:
        console.print(f"No picture {one.heading!r}: {one.reason}.", markup=False, highlight=False)


def _markdown(findings: Findings) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in findings.settings.items())
    parts = ["# Credit lab", *([settings] if settings else [])]
    for table in findings.tables:
        parts += [f"## {table.title}", markdown_table(table.header, table.rows, ("Rule",)), *table.notes]
    parts += [f"No picture {one.heading!r}: {one.reason}." for one in findings.omitted]
    return "\n\n".join(parts) + "\n"


def _place(runs: list[Run]) -> str:
    """What a picture of these runs rests on: "built-in arithmetic, 10 seeds, 60 steps"."""
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.rule] = counts.get(run.rule, 0) + 1
    texts = [
        f"{_range(values)} {name}{'' if set(values) == {1} else 's'}"
        for name, values in (("seed", list(counts.values())), ("step", [len(run.accuracy) for run in runs]))
        if values
    ]
    return ", ".join(["built-in arithmetic", *texts])


def _range(values: list[int]) -> str:
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _strict(value: object) -> object:
    """As strict JSON takes it: None for a number that is not finite."""
    if isinstance(value, Mapping):
        return {str(name): _strict(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value
