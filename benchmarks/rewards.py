"""Grades a second. Maths: the cheap match, the workers, a fresh interpreter for each grade. Code: each kind of tests.

    python benchmarks/rewards.py --output rewards.json

A maths grade in a fresh interpreter is what safety would cost without the workers' forks: it imports math-verify. Code
is graded in jails that wait for it, and in a fresh one for each grade; the share of a grade that the start of its
processes takes is printed. The programs themselves do next to nothing.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import environment, print_table, write_json

from openrlhf_shear.rewards import Verdict, grade_code, grade_math
from openrlhf_shear.rewards.code.workers import MOST_GRADES, CodeWorkers
from openrlhf_shear.rewards.maths.workers import MathWorkers

# (gold, answer): two of three are right; the second list is what the cheap match leaves open.
CHEAP = (("023", "23"), (r"\frac{1}{2}", "0.5"), ("(1,2)", r"\left(2,1\right)"), ("2,3,5", r"\{5,3,2\}"))
OPEN = (
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"3\sqrt{13}", r"\sqrt{118}"),
    (r"\frac{\pi}{2}", r"0.5\pi"),
    (r"(-\infty,1)", "x<1"),
    ("6-5i", "6+5i"),
    ("x^3+3x-6", "-6+3x+x^3"),
    (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}"),
    (r"\frac{n(n+1)}{2}", "n(n-1)/2"),
    (r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}", r"\begin{pmatrix} -\frac13 \\ \frac23 \end{pmatrix}"),
)
WORKING = "Some steps of working, with $x^2 = 4$ and so on. " * 60  # a response of about 3,000 characters
FRESH = """
import sys
from math_verify import parse, verify
gold, answer = (parse(rf"\\boxed{{{text}}}", parsing_timeout=None) for text in sys.argv[1:])
verify(gold, answer, timeout_seconds=None)
"""
# kind of tests: (program, label)
CODE = {
    "stdin, 2 tests": ("print(2 * int(input()))", {"inputs": ["3\n", "4\n"], "outputs": ["6\n", "8\n"]}),
    "stdin, 20 tests": ("print(2 * int(input()))", {"inputs": ["3\n"] * 20, "outputs": ["6\n"] * 20}),
    "a function, 2 tests": (
        "def double(x):\n    return 2 * x",
        {"inputs": [[3], [4]], "outputs": [6, 8], "fn_name": "double"},
    ),
    "asserts, 2 tests": (
        "def double(x):\n    return 2 * x",
        {"test_list": ["assert double(3) == 6", "assert double([1]) == [1, 1]"]},
    ),
}


def main() -> None:
    args = _arguments()
    results = {"environment": environment("cpu"), "processes": args.processes}
    with MathWorkers(args.processes) as workers:
        grade = lambda pair: _grade(pair, workers)  # noqa: E731
        _rate(grade, OPEN, 4 * args.processes, args.processes)  # the hosts start
        rows = [
            _row("cheap match, one thread", grade, CHEAP, 40 * args.grades, 1),
            _row("workers", grade, OPEN, args.grades, args.processes),
        ]
    rows.append(_row("a fresh interpreter for each grade", _fresh, OPEN, max(args.grades // 20, 4), args.processes))
    for row in rows:
        row["times fresh"] = row["per second"] / rows[-1]["per second"]
    results["maths"] = rows
    columns = {
        "path": "path",
        "grades": "grades",
        "per second": "grades/s",
        "median": "median [s]",
        "worst": "worst [s]",
    }
    print_table(f"maths grades on {args.processes} cores", rows, {**columns, "times fresh": "times fresh"})
    results["code"] = [_code_row(kind, args) for kind in CODE]
    columns = {"tests": "tests", "grades": "grades", "per second": "grades/s", "median": "median [s]"}
    columns |= {"start-up": "start, of a grade", "fresh per second": "fresh jails: grades/s"}
    columns |= {"fresh median": "median [s]", "fresh start-up": "start, of a grade", "times fresh": "times fresh"}
    print_table(f"code grades on {args.processes} cores", results["code"], columns)
    if args.output:
        write_json(args.output, results)


def _row(path: str, grade: Callable, pairs: tuple, count: int, threads: int) -> dict:
    seconds, times = _rate(grade, pairs, count, threads)
    return {
        "path": path,
        "grades": count,
        "per second": count / seconds,
        "median": statistics.median(times),
        "worst": max(times),
    }


def _code_row(kind: str, args: argparse.Namespace) -> dict:
    warm, fresh = (_code_rate(kind, args, most) for most in (MOST_GRADES, 1))
    row = {"tests": kind, **warm} | {f"fresh {name}": value for name, value in fresh.items()}
    return row | {"times fresh": warm["per second"] / fresh["per second"]}


def _code_rate(kind: str, args: argparse.Namespace, most: int) -> dict:
    """Of jails that are replaced after `most` grades."""
    program, label = CODE[kind]
    verdicts: list[Verdict] = []
    response = f"```python\n{program}\n```"
    with CodeWorkers(args.processes, most=most) as workers:
        grade = lambda tests: verdicts.append(grade_code(response, tests, workers=workers))  # noqa: E731
        _rate(grade, (label,), 4 * args.processes, args.processes)
        verdicts.clear()
        count = max(args.grades // 5, 4)
        seconds, times = _rate(grade, (label,), count, args.processes)
    if not all(verdict.correct for verdict in verdicts):
        raise SystemExit(f"a right program did not pass: {verdicts}")
    started = sum(verdict.startup_seconds for verdict in verdicts) / sum(verdict.seconds for verdict in verdicts)
    return {
        "grades": count,
        "per second": count / seconds,
        "median": statistics.median(times),
        "start-up": started,
    }


def _rate(grade: Callable, pairs: tuple, count: int, threads: int) -> tuple[float, list[float]]:
    def timed(pair: tuple[str, str]) -> float:
        start = time.perf_counter()
        grade(pair)
        return time.perf_counter() - start

    jobs = [pairs[k % len(pairs)] for k in range(count)]
    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        times = list(pool.map(timed, jobs))
        return time.perf_counter() - start, times


def _grade(pair: tuple[str, str], workers: MathWorkers) -> Verdict:
    gold, answer = pair
    return grade_math(rf"{WORKING} So it is \boxed{{{answer}}}.", gold, workers=workers)


def _fresh(pair: tuple[str, str]) -> None:
    subprocess.run([sys.executable, "-c", FRESH, *pair], check=True, stderr=subprocess.DEVNULL)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="worker hosts, and fresh interpreters at a time")
    parser.add_argument("--grades", type=int, default=500, help="grades in the workers")
    parser.add_argument("--output", type=Path, help="write the numbers to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
