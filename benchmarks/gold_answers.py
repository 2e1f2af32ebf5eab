r"""Does `grade_math` grade gold answers as right in every notation, and other problems' golds as wrong?

The benchmarks are local files below one folder: `math500/test.jsonl`, `aime24/test.jsonl`, `olympiadbench/test.jsonl`
and `gsm8k/test.jsonl`.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from openrlhf_shear.rewards import Verdict, grade_math


@dataclass
class GoldRow:
    r"""The results of a benchmark.

    Attributes:
        problems: number of problems.
        correct, methods: golds graded correct in `\boxed{gold}`, and their number by method.
        variants, variants_correct: other notations of the golds, and how many of them are graded correct.
        others, others_correct: golds of the next problem with another answer, and how many are graded correct.
        others_accepted: these pairs, for a person to check.
        failures: golds and variants not graded correct, with their reasons.
    """

    benchmark: str
    problems: int = 0
    correct: int = 0
    methods: Counter[str] = field(default_factory=Counter)
    variants: int = 0
    variants_correct: int = 0
    others: int = 0
    others_correct: int = 0
    others_accepted: list[tuple[str, str]] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Gold:
    """A gold answer and the benchmark's absolute tolerance."""

    answer: str
    tolerance: float | None = None


def gold_answers(data_dir: Path) -> list[GoldRow]:
    """Grade every gold of the benchmarks in the folder.

    Raises:
        ValueError: the folder has none of the benchmarks.
    """
    rows = []
    for name, gold_of in _LOADERS.items():
        if (path := data_dir / name / "test.jsonl").is_file():
            rows.append(GoldRow(name))
            golds = [gold_of(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
            for gold, other in zip(tqdm(golds, name), _next_different(golds), strict=True):
                _check(rows[-1], gold, other)
    if not rows:
        raise ValueError(f"no benchmark found: got {data_dir}; use a folder with e.g. math500/test.jsonl")
    return rows


def _check(row: GoldRow, gold: Gold, other: Gold) -> None:
    row.problems += 1
    verdict = _graded(rf"So the answer is $\boxed{{{gold.answer}}}$.", gold)
    row.correct += verdict.correct
    row.methods[verdict.method] += verdict.correct
    if not verdict.correct:
        row.failures.append((gold.answer, verdict.why))
    for variant in _variants(gold.answer):
        verdict = _graded(variant, gold)
        row.variants += 1
        row.variants_correct += verdict.correct
        if not verdict.correct:
            row.failures.append((variant, verdict.why))
    row.others += 1
    if _graded(rf"\boxed{{{other.answer}}}", gold).correct:
        row.others_correct += 1
        row.others_accepted.append((gold.answer, other.answer))


def _graded(response: str, gold: Gold) -> Verdict:
    return grade_math(response, gold.answer, tolerance=gold.tolerance)


def _variants(gold: str) -> list[str]:
    bare = gold.strip().strip("$")
    return [
        rf"First I thought \boxed{{0}}, but it is \boxed{{$ {bare} $}}",
        rf"\[\boxed{{ {gold.replace('frac', 'dfrac').replace('ddfrac', 'dfrac')} .}}\]",
        rf"\boxed{{\displaystyle {gold.replace('(', chr(92) + 'left(').replace(')', chr(92) + 'right)')} \,}}"
        if r"\left" not in gold
        else rf"\boxed{{{gold.replace(chr(92) + 'left', '').replace(chr(92) + 'right', '')}}}",
    ]


def _next_different(golds: list[Gold]) -> list[Gold]:
    others = []
    for at, gold in enumerate(golds):
        rest = (*golds[at + 1 :], *golds[:at])
        others.append(next(other for other in rest if other.answer != gold.answer))
    return others


def _gsm8k(row: dict) -> Gold:
    return Gold(row["answer"].rpartition("####")[2].strip())


def _olympiad(row: dict) -> Gold:
    return Gold(row["final_answer"][0], float(row["error"]) if row["error"] else None)


def _plain(row: dict) -> Gold:
    return Gold(row["answer"])


_LOADERS = {"math500": _plain, "aime24": _plain, "olympiadbench": _olympiad, "gsm8k": _gsm8k}
