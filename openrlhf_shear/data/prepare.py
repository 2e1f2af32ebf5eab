"""From rows to a training file: what is kept, and what is dropped and why."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openrlhf_shear.data.checks import Check
from openrlhf_shear.data.sources import Dropped, Problem, Source, messages


@dataclass
class Reason:
    """How many rows were dropped for one reason, and the first of them (`row` counts from 1)."""

    rows: int = 0
    example: dict[str, Any] = field(default_factory=dict)


@dataclass
class Report:
    """What became of the rows: read = kept + those dropped."""

    read: int = 0
    kept: int = 0
    kinds: Counter[str] = field(default_factory=Counter)  # of the kept
    dropped: dict[str, Reason] = field(default_factory=dict)

    def drop(self, reason: str, row: int, detail: str) -> None:
        self.dropped.setdefault(reason, Reason(example={"row": row, "detail": detail[:300]})).rows += 1

    def as_json(self) -> dict:
        dropped = {name: {"rows": self.dropped[name].rows, **self.dropped[name].example} for name in self.by_size()}
        return {"read": self.read, "kept": self.kept, "kinds": dict(sorted(self.kinds.items())), "dropped": dropped}

    def by_size(self) -> list[str]:
        """The reasons, the most frequent first."""
        return sorted(self.dropped, key=lambda name: (-self.dropped[name].rows, name))


def prepare(
    rows: Iterable[Mapping],
    source: Source,
    checks: Sequence[Check],
    keep: Callable[[Problem], None],
    *,
    limit: int | None = None,
    seed: int | None = None,
) -> Report:
    """Give every problem that passes the checks to `keep`; the first check that objects is counted.

    Args:
        limit: stop after so many. Without a seed no further row is read; with one the rest is dropped, "over_limit".
        seed: shuffles the problems, for which all of them are held in memory. None keeps the order of the rows.
    """
    report = Report()
    problems = _problems(rows, source, report)
    if seed is not None:
        shuffled = list(problems)
        random.Random(seed).shuffle(shuffled)
        problems = iter(shuffled)
    for number, problem in problems:
        try:
            for check in checks:
                check(problem)
        except Dropped as drop:
            report.drop(drop.reason, number, drop.detail)
            continue
        keep(problem)
        report.kept += 1
        report.kinds[problem.kind] += 1
        if report.kept == limit:
            break
    if seed is not None:
        for number, problem in problems:
            report.drop("over_limit", number, problem.prompt)
    return report


def _problems(rows: Iterable[Mapping], source: Source, report: Report) -> Iterator[tuple[int, Problem]]:
    for number, row in enumerate(rows, 1):
        report.read += 1
        try:
            yield number, source.problem(row)
        except Dropped as drop:
            report.drop(drop.reason, number, drop.detail)


def line(problem: Problem, system: str | None, datasource: str) -> str:
    row = {"prompt": messages(problem, system), "label": problem.label, "datasource": datasource}
    return json.dumps(row, ensure_ascii=False) + "\n"
