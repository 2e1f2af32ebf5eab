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
     "placements": {"shear": {...}, ...}}                      # as `placement` names it

Accuracies are fractions. The same runs and placements give the same bytes; no time is in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from openrlhf_shear.lab import pictures
from openrlhf_shear.lab.placement import placement_table
from openrlhf_shear.lab.records import Run
from openrlhf_shear.lab.tables import worth_table
from openrlhf_shear.lab.worth import curve, worths
from openrlhf_shear.report.bootstrap import Analysis
from openrlhf_shear.report.findings import Findings, apart, plain

TASK = "built-in arithmetic"


def find(
    runs: Iterable[Run],
    placements: Mapping[str, Analysis],
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
    runs = list(runs)
    compared = worths(runs, baseline)
    curves = {one.rule: curve(runs, one.rule, baseline, block) for one in compared if one.rule != baseline}
    place = _place(runs)
    results = {"settings": dict(settings), "baseline": baseline, "block": block}
    results["rules"] = [
        {
            **plain(one),
            "runs": [
                {"seed": run.seed, "final": run.final, "mean": run.mean}
                for run in sorted(runs, key=lambda run: run.seed)
                if run.rule == one.rule
            ],
            "curve": curves.get(one.rule, []),
        }
        for one in compared
    ]
    tables = [placement_table(placements)] if placements else []
    tables += [worth_table(compared, baseline)] if runs else []
    drawn = [
        pictures.placement_picture(placements, TASK),
        pictures.profile_picture(placements, TASK),
        pictures.worth_picture(compared, baseline, place),
        pictures.curves_picture(curves, baseline, place),
    ]
    return Findings("Credit lab", results | {"placements": placements}, tables, [], *apart(drawn))


def _place(runs: list[Run]) -> str:
    """What a picture of these runs rests on: "built-in arithmetic, 10 seeds, 60 steps"."""
    if not runs:
        return TASK
    seeds, steps = Counter(run.rule for run in runs).values(), [len(run.accuracy) for run in runs]
    return f"{TASK}, {_range(seeds, 'seed')}, {_range(steps, 'step')}"


def _range(values: Iterable[int], name: str) -> str:
    least, most = min(values), max(values)
    return (f"{least}" if least == most else f"{least} to {most}") + f" {name}{'' if most == 1 else 's'}"
