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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from openrlhf_shear.lab import pictures
from openrlhf_shear.lab.placement import Placement
from openrlhf_shear.lab.records import Run
from openrlhf_shear.lab.tables import placement_table, worth_table
from openrlhf_shear.lab.worth import Block, Worth, curve, worths
from openrlhf_shear.report import findings as report
from openrlhf_shear.report.findings import made_and_omitted, plain
from openrlhf_shear.report.tables import Table


@dataclass(frozen=True)
class Findings(report.Findings):
    """What the runs came to; see the module for what `to_json` makes of it.

    Attributes:
        curves: rule -> blocks of its learning curve; of all rules but the baseline.
    """

    TITLE: ClassVar = "Credit lab"
    FIGURES: ClassVar = ("placement", "profile", "worth", "curves")

    baseline: str
    block: int
    runs: list[Run]
    worths: list[Worth]
    curves: dict[str, list[Block]]
    placements: dict[str, Placement]

    @property
    def tables(self) -> list[Table]:
        both = (placement_table(self.placements), worth_table(self.worths, self.baseline))
        return [table for table in both if table]

    def to_json(self) -> dict:
        rules = [
            {
                **plain(one),
                "runs": [
                    {"seed": run.seed, "final": run.final, "mean": run.mean}
                    for run in sorted(self.runs, key=lambda run: run.seed)
                    if run.rule == one.rule
                ],
                "curve": plain(self.curves.get(one.rule, [])),
            }
            for one in self.worths
        ]
        made_of = {"settings": plain(self.settings), "baseline": self.baseline, "block": self.block}
        return {**made_of, "rules": rules, "placements": plain(self.placements)}


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
    compared = worths(runs, baseline)
    curves = {one.rule: curve(runs, one.rule, baseline, block) for one in compared if one.rule != baseline}
    place = _place(runs)
    drawn = [
        pictures.placement_picture(placements, "built-in arithmetic"),
        pictures.profile_picture(placements, "built-in arithmetic"),
        pictures.worth_picture(compared, baseline, place),
        pictures.curves_picture(curves, baseline, place),
    ]
    return Findings(
        settings=dict(settings),
        baseline=baseline,
        block=block,
        runs=runs,
        worths=compared,
        curves=curves,
        placements=placements,
        **made_and_omitted(drawn),
    )


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
