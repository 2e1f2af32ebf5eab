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

from math_verify import parse, verify
from measure import environment, print_table, script_parser, write_json

from openrlhf_shear.rewards import Verdict, grade_code, grade_math
from openrlhf_shear.rewards.code.workers import MOST_GRADES, CodeWorkers
from openrlhf_shear.rewards.maths.workers import MathWorkers

# (gold, answer): two of three are right
CHEAP = (("023", "23"), (r"\frac{1}{2}", "0.5"), ("(1,2)", r"\left(2,1\right)"), ("2,3,5", r"\{5,3,2\}"))
# pairs that the cheap match leaves open; <k> is a number that no other pair of a run has, so no cache has the answer
OPEN = (
    (r"\frac{\sqrt{<k>}}{7}", r"\frac{<k>}{7\sqrt{<k>}}"),
    (r"3\sqrt{<k>}", r"\sqrt{<9k>}"),
    (r"\sqrt{<k>}", r"\sqrt{<9k>}"),
    (r"\sqrt[3]{<k>}", r"<k>^{1/3}"),
    (r"<k>\sqrt{2}+1", r"1+<k>\sqrt{2}"),
    (r"2\sqrt{<k>}-\sqrt{3}", r"-\sqrt{3}+\sqrt{<9k>}"),
    (r"\frac{<k>}{1+\sqrt{2}}", r"<k>(\sqrt{2}-1)"),
    (r"\frac{<k>\pi}{2}", r"\frac{1}{2}\pi\cdot <k>"),
    (r"\frac{\pi}{<k>}", r"\frac{2\pi}{<9k>}"),
    (r"\frac{3\pi r^2}{<k>}", r"\pi r^2\cdot\frac{3}{<k>}"),
    (r"e^{<k>}", r"e^{<9k>}"),
    (r"\ln <k>+1", r"1+\ln <k>"),
    (r"\log_{2} <k>", r"\log_{2} <9k>"),
    (r"\sin <k>x", r"\sin(<k>x)"),
    ("<k>-5i", "<k>+5i"),
    (r"<k>+\sqrt{5}i", r"i\sqrt{5}+<k>"),
    ("x^3+3x-<k>", "-<k>+3x+x^3"),
    ("(x+<k>)(x-2)", "(x-2)(x+<k>)"),
    ("a^2+<k>ab+b^2", "b^2+<k>ba+a^2"),
    (r"\frac{n(n+<k>)}{2}", "n(n-<k>)/2"),
    (r"\frac{2a+b}{<k>c}", r"\frac{b+2a}{<k>c}"),
    (r"\frac{x}{x+<k>}", r"1-\frac{<k>}{x+<k>}"),
    ("2^{n}-<k>", r"2\cdot 2^{n-1}-<k>"),
    (r"\binom{n}{2}+<k>", r"<k>+\frac{n(n-1)}{2}"),
    ("y=2x+<k>", "2x-y+<k>=0"),
    ("y=<k>x-1", "y=<k>x+1"),
    ("x^2+y^2=<k>", "y^2+x^2=<k>"),
    (r"(-\infty,<k>)", "x<<k>"),
    (r"[<k>,\infty)", r"x\ge <k>"),
    (r"x \in (<k>, <9k>)", "<k> < x < <9k>"),
    (r"(-\infty,<k>]\cup[<9k>,\infty)", r"[<9k>,\infty)\cup(-\infty,<k>]"),
    (r"(<k>,\frac{\pi}{2})", r"(<k>,\pi/2)"),
    (r"1 \pm \sqrt{<k>}", r"1-\sqrt{<k>}, 1+\sqrt{<k>}"),
    (r"\{<k>,\sqrt{2}\}", r"\sqrt{2},<k>+1"),
    (
        r"\begin{pmatrix} -1/<k> \\ 2/<k> \end{pmatrix}",
        r"\begin{pmatrix} -\frac{1}{<k>} \\ \frac{2}{<k>} \end{pmatrix}",
    ),
    (
        r"\begin{pmatrix} <k> & \sqrt{2} \\ 0 & 1 \end{pmatrix}",
        r"\begin{pmatrix} <k> & \sqrt{2} \\ 0 & -1 \end{pmatrix}",
    ),
)
THREADS = (1, 8)  # grades at a time
WARM_UP = 8  # rounds: each child of a worker fills its own caches
WORKING = "Some steps of working, with $x^2 = 4$ and so on. " * 60  # makes a response of about 3,000 characters
# kind of tests -> (program, label)
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
