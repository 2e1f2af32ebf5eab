"""Does the code grader agree with the benchmarks' own solutions? Right ones pass; another problem's fail."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from openrlhf_shear.rewards import Verdict, grade_code

Progress = Callable[[str, int, int], None]
"""Called with the set, how many are done and how many there are."""


@dataclass(frozen=True)
class Case:
    """A program and what it should come to against these tests."""

    name: str
    program: str
    tests: dict
    right: bool


def canonical(
    data_dir: Path, progress: Progress | None = None, *, limit: int | None = None, workers: int = 2
) -> list[dict]:
    """Grade every set that is under `data_dir`; a row each: set, right or wrong programs, tasks, as_expected, others.

    Args:
        limit: the first tasks of each set only.
        workers: grades at a time.
    """
    rows = []
    with ThreadPoolExecutor(workers) as pool:
        for name, read in SETS.items():
            try:
                cases = [*read(data_dir)]
            except FileNotFoundError:
                continue
            for right in (True, False):
                chosen = [case for case in cases if case.right == right][:limit]
                others = []
                for at, (case, verdict) in enumerate(zip(chosen, pool.map(_grade, chosen), strict=True), 1):
                    if verdict.correct != right:
                        others.append({"task": case.name, "reason": verdict.reason, "detail": verdict.detail})
                    if progress:
                        progress(name, at, len(chosen))
                row = {"set": name, "programs": "its own" if right else "another task's", "tasks": len(chosen)}
                rows.append({**row, "as_expected": len(chosen) - len(others), "others": others})
    return rows


def _grade(case: Case) -> Verdict:
    # A wrong program may well be endless; the right ones of HumanEval+ and MBPP+ are slow on a busy machine.
    return grade_code(case.program, case.tests, timeout=60.0 if case.right else 5.0, memory_mb=2048, extract=False)


def _paired(tasks: list[tuple[str, str, str, dict]]) -> Iterator[Case]:
    """From name, what it defines, program and tests: each task's own program, and the last task's by this name."""
    for at, (name, defined, program, tests) in enumerate(tasks):
        _, other, wrong, _ = tasks[at - 1]
        yield Case(name, program, tests, right=True)
        yield Case(name, wrong if other == defined else f"{wrong}\n{defined} = {other}\n", tests, right=False)


def _rows(path: Path) -> list[dict]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _humaneval(path: str) -> Callable[[Path], Iterator[Case]]:
    def read(data_dir: Path) -> Iterator[Case]:
        rows = _rows(data_dir / path)
        return _paired(
            [(row["task_id"], row["entry_point"], row["prompt"] + row["canonical_solution"], row) for row in rows]
        )

    return read


def _mbpp(path: str) -> Callable[[Path], Iterator[Case]]:
    def read(data_dir: Path) -> Iterator[Case]:
        rows = _rows(data_dir / path)
        return _paired([(str(row["task_id"]), _tested(row), row["code"], row) for row in rows])

    return read


def _tested(row: dict) -> str:
    """The function of a task's own code that its tests call."""
    names = re.findall(r"def[ \t]+(\w+)", row["code"])
    called = set(re.findall(r"\w+", str(row["test_list"])))
    return next((name for name in reversed(names) if name in called), "solution")


def _leetcode(data_dir: Path) -> Iterator[Case]:
    rows = json.loads((data_dir / "code_rl" / "leetcode_train_1889_rllm.json").read_text())
    return _paired([(str(at), "Solution", row["solutions"], row["tests"]) for at, row in enumerate(rows)])


def _stdin(data_dir: Path) -> Iterator[Case]:
    """These rows have no solutions: a program that knows the outputs passes, one that adds to them does not."""
    rows = json.loads((data_dir / "code_rl" / "code_contests_165_rllm.json").read_text())
    for at, row in enumerate(rows):
        known = dict(zip(row["tests"]["inputs"], row["tests"]["outputs"], strict=True))
        program = f"import sys\nprint({known!r}[sys.stdin.read()]"
        yield Case(str(at), program + ")", row["tests"], right=True)
        yield Case(str(at), program + ", 1)", row["tests"], right=False)


SETS: dict[str, Callable[[Path], Iterator[Case]]] = {
    "HumanEval": _humaneval("humaneval/HumanEval.jsonl.gz"),
    "HumanEval+": _humaneval("humanevalplus/HumanEvalPlus-OriginFmt.jsonl.gz"),
    "MBPP": _mbpp("mbpp/mbpp.jsonl"),
    "MBPP+": _mbpp("mbppplus/MbppPlus-OriginFmt.jsonl.gz"),
    "LeetCode": _leetcode,
    "CodeContests stdin": _stdin,
}
