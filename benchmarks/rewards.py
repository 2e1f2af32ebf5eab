"""Grades a second. Maths: the cheap match, and the workers beside math-verify. Code: each kind of tests.

    python benchmarks/rewards.py --output rewards.json

The workers and math-verify take turns on the same pairs, which no cache knows, in this process: one grade at a time,
and eight at a time in threads. Other load slows both. Rounds end after some processor time, so that a busy machine
makes fewer of them. Code is graded in waiting jails, and in a fresh jail for each grade; the programs do next to
nothing.
"""

import argparse
import itertools
import logging
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from math_verify import parse, verify
from measure import environment, print_table, script_parser, write_json

from openrlhf_shear.rewards import Verdict, grade_code, grade_math
from openrlhf_shear.rewards.code.hosts import MOST_GRADES, CodeWorkers
from openrlhf_shear.rewards.maths.workers import MathWorkers

_PAIRS = yaml.safe_load(Path(__file__).with_name("rewards_pairs.yaml").read_text(encoding="utf-8"))
CHEAP, OPEN, CODE = (_PAIRS[part] for part in ("cheap", "open", "code"))
THREADS = (1, 8)  # grades at a time
WARM_UP = 8  # rounds: each child of a worker fills its own caches
WORKING = "Some steps of working, with $x^2 = 4$ and so on. " * 60  # makes a response of about 3,000 characters


def main() -> None:
    args = _arguments()
    logging.disable()  # math-verify warns that its timeouts are off
    results = {"environment": environment(), "processes": args.processes}
    with MathWorkers(args.processes) as workers:
        grade = lambda pair: _grade(pair, workers)  # noqa: E731
        cheap = _rates("cheap match", *_rate(grade, [*CHEAP] * (10 * args.grades), 1))
        results["maths"] = [cheap, *_beside(grade, args.seconds)]
    columns = {"path": "path", "grades": "grades", "per second": "grades/s", "median": "median [s]"}
    columns |= {"math-verify per second": "math-verify: grades/s", "times": "times math-verify"}
    print_table(f"maths grades on {args.processes} cores", results["maths"], columns)
    results["code"] = [_code_row(kind, args) for kind in CODE]
    columns = {"tests": "tests", "grades": "grades", "per second": "grades/s", "median": "median [s]"}
    columns |= {"fresh per second": "fresh jails: grades/s", "times fresh": "times fresh"}
    print_table(f"code grades on {args.processes} cores", results["code"], columns)
    write_json(args.output, results)


def _beside(grade: Callable, seconds: float) -> list[dict]:
    """Return rows of our grades beside math-verify's. Each number of threads gets as much processor time."""
    fresh = itertools.count(2)  # values of <k>

    def pairs() -> list[tuple[str, ...]]:
        every = zip(OPEN, fresh, strict=False)
        return [tuple(t.replace("<k>", str(k)).replace("<9k>", str(9 * k)) for t in pair) for pair, k in every]

    for _ in range(WARM_UP):
        _rate(grade, pairs(), max(THREADS))
        _rate(_library, pairs(), 1)
    rows = []
    for threads in THREADS:
        until, took = time.process_time() + seconds, {grade: 0.0, _library: 0.0}
        times: dict[Callable, list[float]] = {grade: [], _library: []}
        while time.process_time() < until:
            batch = pairs()
            for grader in times:
                elapsed, each = _rate(grader, batch, threads)
                took[grader] += elapsed
                times[grader] += each
        ours, theirs = (_rates(f"workers, {threads} at a time", took[grader], times[grader]) for grader in times)
        theirs = theirs["per second"]
        rows.append(ours | {"math-verify per second": theirs, "times": ours["per second"] / theirs})
    return rows


def _library(pair: tuple[str, str]) -> None:
    """Parse and verify without timeouts, and with relations as sets, as the workers read them."""
    gold, answer = (parse(rf"\boxed{{{text}}}", parsing_timeout=None) for text in pair)
    verify(gold, answer, allow_set_relation_comp=True, timeout_seconds=None)


def _rates(path: str, seconds: float, times: list[float]) -> dict:
    return {"path": path, "grades": len(times), "per second": len(times) / seconds, "median": statistics.median(times)}


def _code_row(kind: str, args: argparse.Namespace) -> dict:
    warm, fresh = (_code_rate(kind, args, most) for most in (MOST_GRADES, 1))
    row = {"tests": kind, **warm} | {f"fresh {name}": value for name, value in fresh.items()}
    return row | {"times fresh": warm["per second"] / fresh["per second"]}


def _code_rate(kind: str, args: argparse.Namespace, most: int) -> dict:
    """Measure jails that are replaced after `most` grades."""
    program, label = CODE[kind]
    verdicts: list[Verdict] = []
    response = f"```python\n{program}\n```"
    with CodeWorkers(args.processes, most=most) as workers:
        grade = lambda tests: verdicts.append(grade_code(response, tests, workers=workers))  # noqa: E731
        _rate(grade, 4 * args.processes * [label], args.processes)
        verdicts.clear()
        count = max(args.grades // 5, 4)
        seconds, times = _rate(grade, count * [label], args.processes)
    if not all(verdict.correct for verdict in verdicts):
        raise SystemExit(f"a right program did not pass: {verdicts}")
    return {"grades": count, "per second": count / seconds, "median": statistics.median(times)}


def _rate(grade: Callable, jobs: list, threads: int) -> tuple[float, list[float]]:
    """Return the seconds of all jobs, and of each."""

    def timed(job: object) -> float:
        start = time.perf_counter()
        grade(job)
        return time.perf_counter() - start

    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        times = list(pool.map(timed, jobs))
        return time.perf_counter() - start, times


def _grade(pair: tuple[str, str], workers: MathWorkers) -> Verdict:
    gold, answer = pair
    return grade_math(rf"{WORKING} So it is \boxed{{{answer}}}.", gold, workers=workers)


def _arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--processes", type=int, default=2, help="worker hosts at a time")
    parser.add_argument("--grades", type=int, default=720, help="grades of each kind of tests, times 5 (default 720)")
    parser.add_argument("--seconds", type=float, default=30.0, help="processor time beside math-verify, by threads [s]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
