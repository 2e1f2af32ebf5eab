r"""Do the graders agree with the benchmarks' own answers and solutions? They must pass; another problem's must fail.

The benchmarks are local files below one folder, e.g. `math500/test.jsonl`, `aime24/test.jsonl`,
`olympiadbench/test.jsonl` and `gsm8k/test.jsonl`.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from openrlhf_shear.rewards import Verdict, grade_code, grade_math
from openrlhf_shear.rewards.code.tests import CLOSE, AssertTests, tests_of


@dataclass(frozen=True)
class Case:
    """A program, its tests, and whether it should pass them."""

    name: str
    program: str
    tests: dict | AssertTests
    right: bool


def canonical(data_dir: Path, limit: int | None = None, workers: int = 2) -> list[dict]:
    """Return rows for each set below `data_dir`: its own programs, and other tasks' programs.

    Args:
        limit: grade only the first tasks of each set.
        workers: concurrent grades.
    """
    rows = []
    for name, read in SETS.items():
        try:
            cases = [*read(data_dir)]
        except FileNotFoundError:
            continue
        for right, what in ((True, "its own"), (False, "another task's")):
            rows.append(_graded(name, what, [case for case in cases if case.right == right][:limit], workers))
    return rows


def empty_lists(data_dir: Path, limit: int | None = None, workers: int = 2) -> list[dict]:
    """Return rows of `return []` for every task of EvalPlus, by its tests as published and as mended."""
    rows = []
    for name, path, task_of in EVALPLUS:
        tasks = [task_of(row) for row in json_lines(data_dir / path)][:limit] if (data_dir / path).is_file() else []
        for what, read in (("return [], as published", _as_published), ("return [], as mended", lambda same: same)):
            cases = [
                Case(task, f"def {defined}(*given):\n    return []\n", read(tests_of(tests)), right=False)
                for task, defined, _, tests in tasks
            ]
            rows += [_graded(name, what, cases, workers)] if cases else []
    return rows


def _graded(name: str, what: str, cases: list[Case], workers: int) -> dict:
    """Return the row of some programs of a set; `others` are those that are graded unlike `Case.right`."""
    with ThreadPoolExecutor(workers) as pool:
        verdicts = list(tqdm(pool.map(_grade, cases), f"{name}, {what}", len(cases)))
    graded = zip(cases, verdicts, strict=True)
    others = [
        f"{case.name}: {said.why or 'passed'} {said.detail}" for case, said in graded if said.correct != case.right
    ]
    return row_of(name, what, len(cases), others)


def row_of(benchmark: str, graded: str, count: int, others: list, note: str = "") -> dict:
    """Return a row of results: what is graded, how often the verdict is as expected, and the others."""
    row = {"benchmark": benchmark, "graded": graded, "count": count, "as expected": count - len(others)}
    return row | {"note": note, "others": others}


def _as_published(tests: AssertTests) -> AssertTests:
    """Return EvalPlus's tests with its own comparison of floats."""
    return replace(tests, tests=tuple(test.replace(CLOSE[1], CLOSE[0]) for test in tests.tests))


def _grade(case: Case) -> Verdict:
    # A wrong program may be endless; the right ones of HumanEval+ and MBPP+ are slow on a busy machine.
    return grade_code(case.program, case.tests, timeout=60.0 if case.right else 5.0, memory_mb=2048, extract=False)


def _paired(tasks: list[tuple[str, str, str, dict]]) -> Iterator[Case]:
    """Yield each task's own program, and the previous task's under this task's name; tasks are (name, defined, ...)."""
    for at, (name, defined, program, tests) in enumerate(tasks):
        _, other, wrong, _ = tasks[at - 1]
        yield Case(name, program, tests, right=True)
        yield Case(name, wrong if other == defined else f"{wrong}\n{defined} = {other}\n", tests, right=False)


def json_lines(path: Path) -> Iterator[dict]:
    """Yield the rows of a file of JSON lines, gzipped or not."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _humaneval(row: dict) -> tuple[str, str, str, dict]:
    return row["task_id"], row["entry_point"], row["prompt"] + row["canonical_solution"], row


def _mbpp(row: dict) -> tuple[str, str, str, dict]:
    return str(row["task_id"]), _tested(row), row["code"], row


def _lines(path: str, task_of: Callable[[dict], tuple]) -> Callable[[Path], Iterator[Case]]:
    return lambda data_dir: _paired([task_of(row) for row in json_lines(data_dir / path)])


def _tested(row: dict) -> str:
    """Return the function of a task's own code that its tests call."""
    names = re.findall(r"def[ \t]+(\w+)", row["code"])
    called = set(re.findall(r"\w+", str(row["test_list"])))
    return next((name for name in reversed(names) if name in called), "solution")


def _leetcode(data_dir: Path) -> Iterator[Case]:
    rows = json.loads((data_dir / "code_rl" / "leetcode_train_1889_rllm.json").read_text())
    return _paired([(str(at), "Solution", row["solutions"], row["tests"]) for at, row in enumerate(rows)])


def _stdin(data_dir: Path) -> Iterator[Case]:
    """Yield programs made from the tests, as rows have no solutions: one prints the outputs, one adds to them."""
    rows = json.loads((data_dir / "code_rl" / "code_contests_165_rllm.json").read_text())
    for at, row in enumerate(rows):
        known = dict(zip(row["tests"]["inputs"], row["tests"]["outputs"], strict=True))
        program = f"import sys\nprint({known!r}[sys.stdin.read()]"
        yield Case(str(at), program + ")", row["tests"], right=True)
        yield Case(str(at), program + ", 1)", row["tests"], right=False)


EVALPLUS = (
    ("HumanEval+", "humanevalplus/HumanEvalPlus-OriginFmt.jsonl.gz", _humaneval),
    ("MBPP+", "mbppplus/MbppPlus-OriginFmt.jsonl.gz", _mbpp),
)
SETS: dict[str, Callable[[Path], Iterator[Case]]] = {
    "HumanEval": _lines("humaneval/HumanEval.jsonl.gz", _humaneval),
    "HumanEval+": _lines(*EVALPLUS[0][1:]),
    "MBPP": _lines("mbpp/mbpp.jsonl", _mbpp),
    "MBPP+": _lines(*EVALPLUS[1][1:]),
    "LeetCode": _leetcode,
    "CodeContests stdin": _stdin,
}

# ── Answers ──

Gold = tuple[str, float | None]
"""A gold answer and the benchmark's absolute tolerance."""


def gold_answers(data_dir: Path) -> list[dict]:
    """Return two rows for each benchmark in the folder: its golds, and those of the next problem with another answer.

    Raises:
        ValueError: the folder has none of the benchmarks.
    """
    rows = []
    for name, gold_of in LOADERS.items():
        if (path := data_dir / name / "test.jsonl").is_file():
            rows += _golds(name, [gold_of(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()])
    if not rows:
        raise ValueError(f"no benchmark found: got {data_dir}; use a folder with e.g. math500/test.jsonl")
    return rows


def _golds(name: str, golds: list[Gold]) -> Iterator[dict]:
    methods, refused, accepted = Counter(), [], []
    for at, gold in enumerate(tqdm(golds, name)):
        verdict = _answered(rf"So it is $\boxed{{{gold[0]}}}$.", gold)
        methods[verdict.method] += verdict.correct
        refused += [] if verdict.correct else [(gold[0], verdict.why)]
        other = next(other for other, _ in (*golds[at + 1 :], *golds[:at]) if other != gold[0])
        accepted += [(gold[0], other)] if _answered(rf"\boxed{{{other}}}", gold).correct else []
    note = ", ".join(f"{count} {method}" for method, count in methods.most_common())
    yield row_of(name, "its golds", len(golds), refused, note)
    yield row_of(name, "the next golds", len(golds), accepted)


def _answered(response: str, gold: Gold) -> Verdict:
    return grade_math(response, gold[0], tolerance=gold[1])


def _plain(row: dict) -> Gold:
    return row["answer"], None


LOADERS = {
    "math500": _plain,
    "aime24": _plain,
    "olympiadbench": lambda row: (row["final_answer"][0], float(row["error"]) if row["error"] else None),
    "gsm8k": lambda row: (row["answer"].rpartition("####")[2].strip(), None),
}
