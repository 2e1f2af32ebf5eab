r"""Does `grade_math` grade gold answers as right, and other problems' golds as wrong?

The benchmarks are local files below one folder: `math500/test.jsonl`, `aime24/test.jsonl`, `olympiadbench/test.jsonl`
and `gsm8k/test.jsonl`.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gold_programs import row_of
from tqdm import tqdm

from openrlhf_shear.rewards import Verdict, grade_math

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
            rows += _rows(name, [gold_of(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()])
    if not rows:
        raise ValueError(f"no benchmark found: got {data_dir}; use a folder with e.g. math500/test.jsonl")
    return rows


def _rows(name: str, golds: list[Gold]) -> Iterator[dict]:
    methods, refused, accepted = Counter(), [], []
    for at, gold in enumerate(tqdm(golds, name)):
        verdict = _graded(rf"So it is $\boxed{{{gold[0]}}}$.", gold)
        methods[verdict.method] += verdict.correct
        refused += [] if verdict.correct else [(gold[0], verdict.why)]
        other = next(other for other, _ in (*golds[at + 1 :], *golds[:at]) if other != gold[0])
        accepted += [(gold[0], other)] if _graded(rf"\boxed{{{other}}}", gold).correct else []
    note = ", ".join(f"{count} {method}" for method, count in methods.most_common())
    yield row_of(name, "its golds", len(golds), refused, note)
    yield row_of(name, "the next golds", len(golds), accepted)


def _graded(response: str, gold: Gold) -> Verdict:
    return grade_math(response, gold[0], tolerance=gold[1])


def _plain(row: dict) -> Gold:
    return row["answer"], None


LOADERS = {
    "math500": _plain,
    "aime24": _plain,
    "olympiadbench": lambda row: (row["final_answer"][0], float(row["error"]) if row["error"] else None),
    "gsm8k": lambda row: (row["answer"].rpartition("####")[2].strip(), None),
}
