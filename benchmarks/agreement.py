r"""Does the maths reward agree with labels of right and wrong, and with math-verify?

    python benchmarks/agreement.py --responses FILE ... --golds FILE ... --disagreements read.jsonl

Responses are rows with a problem, a response (`response`, `solution`, or a list of `steps`) and a label
(`final_answer_correct`, `is_correct` or `correct`). Their golds are looked up by the text of the problem in the rows of
`--golds`, which are files of benchmarks. The table counts right answers that were refused and wrong answers that were
paid, for both graders. Labels can be wrong too: `--disagreements` writes every case to read, and `--classes` is a file
of what was found by reading: {id: {"class": ..., "reason": ...}}. The classes are label (it or the gold is wrong),
policy (a documented choice) and fault (of the graders that disagree with the label).
"""

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import TimeoutError as LateError
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path

from measure import environment, print_table, script_parser, write_json
from tqdm import tqdm

from openrlhf_shear.data.checks import normalized
from openrlhf_shear.data.files import open_rows
from openrlhf_shear.rewards import grade_math
from openrlhf_shear.rewards.maths.answers import final_answer
from openrlhf_shear.rewards.maths.workers import MathWorkers

_PROBLEM = ("problem", "question", "prompt")
_RESPONSE = ("response", "solution", "steps")
_LABEL = ("final_answer_correct", "is_correct", "correct")
_GOLD = ("final_answer", "answer", "solution")
_SECONDS = 20.0  # for a call of math-verify, whose own timeouts do not end every call


@dataclass(frozen=True)
class Case:
    """A response with its label and gold.

    Attributes:
        right: the label: whether the final answer is correct.
        tolerance: absolute tolerance of the gold; None: exact.
    """

    source: str
    id: str
    problem: str
    response: str
    right: bool
    gold: str
    tolerance: float | None = None


@dataclass
class Disagreement:
    """A case on which a grader and the label differ, to be read and classed."""

    source: str
    id: str
    right: bool
    ours: bool
    theirs: bool | None
    reason: str | None
    answer: str | None
    gold: str
    problem: str


def main() -> None:
    args = _arguments()
    classes = json.loads(args.classes.read_text()) if args.classes else {}
    golds = read_golds(args.golds)
    cases, missing = read_cases(args.responses, golds)
    found = {"environment": environment(), "without a gold": missing}
    ours = graded(cases, args.cores, args.formats)
    theirs = [case.right for case in cases] if args.ours else by_math_verify(cases)  # never a disagreement
    found["rows"] = [
        {name: count for name, count in row.items() if not (args.ours and "math-verify" in name)}
        for row in rows_of(cases, ours, theirs)
    ]
    print_table(
        "right answers refused and wrong answers paid", found["rows"], {name: name for name in found["rows"][0]}
    )
    if classes and not args.ours:
        found["classes"] = classes_of(cases, ours, theirs, classes)
        print_table("disagreements with the labels", found["classes"], {name: name for name in found["classes"][0]})
    write_lines(args.disagreements, map(asdict, disagreements(cases, ours, theirs)))
    write_json(args.output, found)


def write_lines(path: Path | None, rows: Iterable[dict]) -> None:
    if path is not None:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{path}: written")


def read_golds(files: list[Path]) -> dict[str, tuple[str, float | None]]:
    """Return gold and tolerance by the normalized text of the problem."""
    golds = {}
    for file in files:
        for row in open_rows(str(file)).rows:
            gold = _first(row, _GOLD)
            gold = gold[0] if isinstance(gold, list) else str(gold)
            if "####" in gold:
                gold = gold.rpartition("####")[2]
            elif "\\boxed" in gold:
                gold = final_answer(gold)[0] or ""
            error = row.get("error")
            if gold.strip():
                golds[normalized(_first(row, _PROBLEM))] = gold.strip(), float(error) if error else None
    return golds


def read_cases(files: list[Path], golds: dict[str, tuple[str, float | None]]) -> tuple[list[Case], int]:
    """Return the responses whose gold is known, and how many have none."""
    cases, missing = [], 0
    for file in files:
        source = file.name.partition(".")[0]
        for at, row in enumerate(open_rows(str(file)).rows):
            problem, response = _first(row, _PROBLEM), _first(row, _RESPONSE)
            response = "\n\n".join(response) if isinstance(response, list) else response
            gold, tolerance = golds.get(normalized(problem), (None, None))
            if gold is None:
                missing += 1
                continue
            name = str(row.get("id", f"{source}-{at}"))
            cases.append(Case(source, name, problem, response, bool(_first(row, _LABEL)), gold, tolerance))
    return cases, missing


def graded(cases: list[Case], cores: int, formats: tuple[str, ...]) -> list[tuple[bool, str | None, str | None]]:
    """Return (correct, reason, answer) of each case by `grade_math`."""

    def grade(case: Case) -> tuple[bool, str | None, str | None]:
        asked = {"question": case.problem or None, "formats": formats, "tolerance": case.tolerance}
        said = grade_math(case.response, case.gold, workers=workers, **asked)
        return bool(said.correct), said.reason and str(said.reason), said.answer

    with MathWorkers(cores) as workers, ThreadPoolExecutor(cores) as threads:
        return list(tqdm(threads.map(grade, cases), "grade_math", len(cases)))


def by_math_verify(cases: list[Case]) -> list[bool | None]:
    """Return whether math-verify takes each response as right, in its default settings; None: it did not answer.

    A process that is late is replaced.
    """
    pool, said = _pool(), []
    try:
        for case in tqdm(cases, "math-verify"):
            try:
                said.append(pool.apply_async(_theirs, (case.gold, case.response)).get(_SECONDS))
            except LateError:
                said.append(None)
                pool.terminate()
                pool = _pool()
    finally:
        pool.terminate()
    return said


def _pool() -> Pool:
    """Return a process that has imported math-verify."""
    pool = get_context("spawn").Pool(1)
    pool.apply(_theirs, ("1", r"\boxed{1}"))
    return pool


def _theirs(gold: str, response: str) -> bool:
    logging.disable()
    from math_verify import parse, verify

    return bool(verify(parse(rf"\boxed{{{gold}}}"), parse(response)))


def rows_of(cases: list[Case], ours: list, theirs: list) -> list[dict]:
    """Return the confusion of both graders for each source and in all, over the responses with an answer."""
    rows = []
    for source in (*dict.fromkeys(case.source for case in cases), "all"):
        counts = Counter()
        for case, (correct, reason, _), other in zip(cases, ours, theirs, strict=True):
            if source not in (case.source, "all"):
                continue
            counts["responses"] += 1
            if reason == "no_answer":
                counts["no answer"] += 1
                continue
            kind = "right" if case.right else "wrong"
            counts[kind] += 1
            counts[f"{kind}: ours {'paid' if correct else 'refused'}"] += 1
            counts[f"{kind}: math-verify {'paid' if other else 'refused'}"] += 1
        names = ("responses", "no answer", "right", "right: ours refused", "right: math-verify refused")
        names += ("wrong", "wrong: ours paid", "wrong: math-verify paid")
        rows.append({"source": source} | {name: counts[name] for name in names})
    return rows


def disagreements(cases: list[Case], ours: list, theirs: list) -> Iterator[Disagreement]:
    """Yield the cases with an answer where one of the graders differs from the label."""
    for case, (correct, reason, answer), other in zip(cases, ours, theirs, strict=True):
        if reason != "no_answer" and (correct != case.right or bool(other) != case.right):
            named = (case.source, case.id, case.right)
            yield Disagreement(*named, correct, other, reason, answer, case.gold, case.problem)


def classes_of(cases: list[Case], ours: list, theirs: list, read: dict[str, dict]) -> list[dict]:
    """Return the number of each grader's disagreements by class, over the responses with an answer."""
    counts = {"ours": Counter(), "math-verify": Counter()}
    for case, (correct, reason, _), other in zip(cases, ours, theirs, strict=True):
        for grader, said in (("ours", correct), ("math-verify", bool(other))):
            if reason != "no_answer" and said != case.right:
                counts[grader][read[case.id]["class"] if case.id in read else "not read"] += 1
    kinds = ("label", "policy", "fault", "not read")
    return [{"grader": grader, **{kind: count[kind] for kind in kinds}} for grader, count in counts.items()]


def _first(row: dict, names: tuple[str, ...]) -> object:
    """Return the value of the first of these columns that a row has. Raises ValueError: it has none."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise ValueError(f"a row must have one of {', '.join(names)}: got {', '.join(row)}; rename the column")


def _arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--responses", type=Path, nargs="+", default=(), metavar="FILE", help="rows with labels")
    parser.add_argument("--golds", type=Path, nargs="+", default=(), metavar="FILE", help="rows with golds")
    parser.add_argument("--cores", type=int, default=2, help="grades at a time (default 2)")
    parser.add_argument("--formats", nargs="+", default=("boxed",), help="answer formats that count (default boxed)")
    parser.add_argument("--ours", action="store_true", help="leave math-verify out")
    parser.add_argument("--disagreements", type=Path, metavar="FILE.jsonl", help="write the cases to read to this file")
    parser.add_argument("--classes", type=Path, metavar="FILE.json", help="what was found by reading, by id")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:  # of files that cannot be used
        sys.exit(f"error: {error}")
