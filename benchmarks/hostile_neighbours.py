"""Hostile programs, beside honest programs and before them: none may be lost, late or graded wrong.

    python hostile_neighbours.py --output hostile_neighbours.json
    python hostile_neighbours.py --order before --output hostile_neighbours.json    # two minutes

Order "beside": each row grades one kind of hostile program again and again, in jails that it shares with 50 honest
grades of several kinds. The first row has no hostile program. "lost" counts rollouts that failed: there is no verdict
on the program.

Order "before": each attack of `hostile.yaml` is graded in a warm jail, and then an honest program. It also counts the
escapes of `shear-check-rewards`, and measures programs a second. --output keeps the other order's rows.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

from measure import environment, print_table, script_parser, write_json
from tqdm import tqdm
from warm_jails import ATTACKS, LABELS, PROGRAMS, attacked, speed

from openrlhf_shear.rewards import Verdict, grade_code
from openrlhf_shear.rewards.code.hosts import CodeWorkers
from openrlhf_shear.rewards.jail import find_jail
from openrlhf_shear.rewards.jail.escapes import try_escapes
from openrlhf_shear.rewards.verdict import Reason

HOSTILE = PROGRAMS["hostile"]
HONEST = {kind: (row["program"], LABELS[row["label"]]) for kind, row in PROGRAMS["honest"].items()}


def main() -> None:
    args = _arguments()
    if args.markdown:
        print("\n".join(markdown(json.loads(args.markdown.read_text())["before"])))
        return
    results = json.loads(args.output.read_text()) if args.output and args.output.exists() else {}
    held = all([_DO[order](args, results) for order in args.order])
    write_json(args.output, results)
    sys.exit(0 if held else 1)


def beside(args: argparse.Namespace, results: dict) -> bool:
    """Add the rows of honest programs beside hostile programs to the results; return whether all are right."""
    results |= {"environment": environment(), "jail": find_jail().mechanisms, "processes": args.processes}
    results["rows"] = [
        row_of(kind, args.honest, args.processes, args.timeout, args.seconds) for kind in (None, *args.kinds)
    ]
    columns = {"hostile": "hostile program", "verdict": "its verdict", "its grades": "its grades"}
    columns |= {name: name for name in ("honest", "right", "timeout", "lost")}
    print_table(
        "honest grades beside a hostile program",
        results["rows"],
        columns | {"median": "median [s]", "worst": "worst [s]"},
    )
    return all(row["right"] == row["honest"] for row in results["rows"])


def before(args: argparse.Namespace, results: dict) -> bool:
    """Add the rows of honest programs after attacks on their jail to the results; return whether all are right."""
    found = results["before"] = {"environment": environment(), "jail": find_jail().mechanisms}
    found["rows"] = list(tqdm(attacked(ATTACKS), total=len(ATTACKS), leave=False))
    escapes = [outcome for _, _, outcome in try_escapes(find_jail())]
    found["escapes"] = {"tried": len(escapes), "blocked": sum(outcome.startswith("refused") for outcome in escapes)}
    found["programs a second"] = speed(args.honest)
    columns = {name: name for name in ("attack", "goal", "verdict", "next", "jail", "held")}
    print_table("an honest grade after an attack on its jail", found["rows"], columns)
    print(f"escapes: {found['escapes']}; programs a second: {found['programs a second']}")
    return all(row["held"] for row in found["rows"]) and len(escapes) == found["escapes"]["blocked"]


_DO = {"beside": beside, "before": before}


def markdown(found: dict) -> Iterator[str]:
    """Yield the tables of `before` as docs/security.md has them: a row for each goal, and the measured rates."""
    goals = {row["goal"]: [other for other in found["rows"] if other["goal"] == row["goal"]] for row in found["rows"]}
    yield from ("| goal | attacks | held | then a new jail |", "| --- " * 4 + "|")
    for goal, rows in goals.items():
        yield f"| {goal} | {len(rows)} | {sum(r['held'] for r in rows)} | {sum(r['jail'] == 'new' for r in rows)} |"
    rate, escapes = found["programs a second"], found["escapes"]
    yield from ("", "| measured | |", "| --- | --- |")
    yield f"| escapes blocked, of those tried | {escapes['blocked']} of {escapes['tried']} |"
    yield f"| programs a second, in a warm jail | {rate['warm']:.1f} |"
    yield f"| programs a second, with a new jail for each | {rate['fresh']:.1f} |"


def row_of(kind: str | None, honest: int, processes: int, timeout: float, seconds: float) -> dict:
    """Grade honest programs in `processes` threads; one more thread grades a hostile program that takes `seconds`."""
    hostile = PROGRAMS["hostile_begin"].replace("SECONDS", str(seconds)) + HOSTILE.get(kind, "")
    over, verdicts = threading.Event(), Counter()
    jobs = [*islice(cycle(HONEST.values()), honest)]
    with CodeWorkers(processes + 1) as workers, ThreadPoolExecutor(processes + 1) as pool:

        def graded(job: tuple[str, dict]) -> Verdict:
            return grade_code(job[0], job[1], extract=False, timeout=timeout, workers=workers)

        def attack() -> None:
            while kind and not over.is_set():
                said = graded((hostile, LABELS["two lines"]))
                verdicts[said.why or "passed"] += 1

        list(pool.map(graded, jobs[: len(HONEST)]))  # starts the jails
        attacking = pool.submit(attack)
        time.sleep(0.5 if kind else 0.0)  # until the attack has begun
        said = list(pool.map(graded, jobs))
        over.set()
        attacking.result()
    times = [verdict.seconds for verdict in said]
    return {
        "hostile": kind or "none",
        "verdict": ", ".join(verdicts),
        "its grades": sum(verdicts.values()),
        "honest": honest,
        "right": sum(verdict.correct is True for verdict in said),
        "timeout": sum(verdict.reason == Reason.TIMEOUT for verdict in said),
        "lost": sum(verdict.failure is not None for verdict in said),
        "median": statistics.median(times),
        "worst": max(times),
        "not right": [str(verdict) for verdict in said if not verdict.correct],
    }


def _arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--order", nargs="+", choices=_DO, default=[*_DO], help="hostile programs (default: both)")
    parser.add_argument("--markdown", type=Path, metavar="FILE.json", help="print an --output file as docs/ has it")
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=HOSTILE,
        metavar="KIND",
        default=[*HOSTILE],
        help="kinds of hostile programs (default: all)",
    )
    parser.add_argument("--honest", type=int, default=50, help="grades beside each of them (default 50)")
    parser.add_argument("--processes", type=int, default=2, help="concurrent honest grades (default 2)")
    parser.add_argument("--timeout", type=float, default=10.0, help="of a test [s], as --reward.timeout (default 10)")
    parser.add_argument("--seconds", type=float, default=8.0, help="duration of a hostile program (default 8)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
