r"""Does `grade_math` find gold answers right, however they are written, and other problems' golds wrong?

The benchmarks are read from local files; `math500/test.jsonl`, `aime24/test.jsonl`, `olympiadbench/test.jsonl` and
`gsm8k/test.jsonl` below one folder.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from openrlhf_shear.rewards import Verdict, grade_math


@dataclass
class GoldRow:
    r"""One benchmark.

    Attributes:
        problems: how many.
        correct: golds graded correct in `\boxed{gold}`; methods: by which method.
        variants, variants_correct: other ways to write the golds, and how many of them are graded correct.
        others, others_correct: golds of the next problem that is not written the same, and how many are graded
            correct; others_accepted: these pairs, for a person to look at.
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
    """A gold answer and the absolute tolerance its benchmark allows."""

    answer: str
    tolerance: float | None = None


def gold_answers(data_dir: Path) -> list[GoldRow]:
    """Grade every gold of the benchmarks that are in the folder.

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
        row.failures.append((gold.answer, verdict.reason))
    for variant in _variants(gold.answer):
        verdict = _graded(variant, gold)
        row.variants += 1
        row.variants_correct += verdict.correct
        if not verdict.correct:
            row.failures.append((variant, verdict.reason))
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
