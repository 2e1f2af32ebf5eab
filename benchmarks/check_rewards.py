"""Do the rewards hold? Test the graders on benchmarks' own answers, and on responses made to break them.

    python benchmarks/check_rewards.py gold --data-dir DATA
    python benchmarks/check_rewards.py copied --data-dir DATA
    python benchmarks/check_rewards.py malformed

- gold: gold answers and canonical solutions of downloaded benchmarks are graded correct, those of others wrong
- copied: a boxed formula of the question is not paid, and few honest answers are lost for that
- malformed: responses made to fool, freeze or crash a grader; no grade is lost, correct or stalled
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from copied_questions import copied
from gold_answers import gold_answers
from gold_programs import canonical, empty_lists
from malformed_responses import GOOD, Malformed, malformed
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from openrlhf_shear.rewards import Verdict
from openrlhf_shear.rewards.jail import JailError, find_jail
from openrlhf_shear.rewards.pool import RewardPool, RewardSettings

PROG = "python benchmarks/check_rewards.py"
GOOD_EVERY = 20  # malformed responses before a good response
START_SECONDS = 10.0  # allowed for the start of a jail or a maths worker, on a busy machine


def check_malformed(count: int, seed: int, cores: int, timeout: float) -> tuple[list[dict], dict]:
    """Grade `count` malformed responses through the pools of training, a good response after every `GOOD_EVERY`.

    Returns:
        A row for each kind, and a summary in which `lost`, `correct`, `failed`, `good_wrong` and `stalled` must be 0. A
        grade stalls if it takes longer than the timeout of its tests plus `START_SECONDS`.
    """
    samples = list(malformed(count, seed))
    results: dict[int, Verdict] = {}
    good: list[Verdict] = []
    for reward in ("math", "code"):
        mine = [i for i, sample in enumerate(samples) if sample.reward == reward]
        pool = RewardPool(RewardSettings(reward, cores=cores, timeout=timeout))
        try:
            batches = [mine[k : k + GOOD_EVERY] for k in range(0, len(mine), GOOD_EVERY)]
            for batch in tqdm(batches, desc=f"{reward}, batches of {GOOD_EVERY} and a good response", file=sys.stderr):
                triples = [(samples[i].response, "", samples[i].label) for i in batch]
                response, label = GOOD[reward]
                *graded, last = pool.grade_all([*triples, (response, "", label)])
                results.update(zip(batch, graded, strict=True))
                good.append(last)
        finally:
            pool.close()
    rows = _by_kind(samples, results)
    return rows, {
        "responses": count,
        "lost": count - len(results),
        "correct": sum(graded.reward == 1.0 for graded in results.values()),
        "failed": sum(graded.reward is None for graded in results.values()),
        "good": len(good),
        "good_wrong": sum(graded.reward != 1.0 for graded in good),
        "stalled": sum(row["slowest_s"] > _clock(row["reward"], timeout) for row in rows),
    }


def _clock(reward: str, timeout: float) -> float:
    return START_SECONDS + (2 * timeout if reward == "code" else timeout)  # a code label has two tests


def _by_kind(samples: list[Malformed], results: dict[int, Verdict]) -> list[dict]:
    kinds: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for i, graded in results.items():
        kinds[samples[i].reward, samples[i].kind].append(graded)
    return [
        {
            "reward": reward,
            "kind": kind,
            "responses": len(graded),
            "correct": sum(g.reward == 1.0 for g in graded),
            "outcomes": ", ".join(
                f"{n} {said}" for said, n in Counter(g.why or "CORRECT" for g in graded).most_common()
            ),
            "slowest_s": round(max(g.seconds for g in graded), 2),
        }
        for (reward, kind), graded in sorted(kinds.items(), reverse=True)
    ]


def check_gold(data_dir: Path, limit: int | None) -> list[dict]:
    """Return rows for each benchmark found: its gold answers or canonical solutions, and those of another problem."""
    rows = []
    for row in gold_answers(data_dir):
        methods = ", ".join(f"{count} {method}" for method, count in row.methods.most_common())
        rows.append(_gold_row(row.benchmark, "its golds", row.problems, row.correct, methods, row.failures))
        accepted = f"{row.others_correct} accepted, see below" if row.others_correct else ""
        wrong = row.others - row.others_correct
        rows.append(_gold_row(row.benchmark, "the next golds", row.others, wrong, accepted, row.others_accepted))
    for row in (*canonical(data_dir, limit=limit), *empty_lists(data_dir, limit=limit)):
        others = [f"{other['task']}: {other['reason']} {other['detail']}" for other in row["others"]]
        rows.append(_gold_row(row["set"], row["programs"], row["tasks"], row["as_expected"], "", others))
    return rows


def _gold_row(benchmark: str, what: str, count: int, as_expected: int, note: str, others: list) -> dict:
    return {
        "benchmark": benchmark, "graded": what, "count": count, "as expected": as_expected, "note": note,
        "others": others,
    }  # fmt: skip


# --- the command ---


def main(argv: Sequence[str] | None = None) -> None:
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        jail = find_jail()
        report = args.run(args)
    except (JailError, ValueError) as error:
        parser.exit(1, f"{PROG}: error: {error}\n")
    report["jail"] = list(jail.mechanisms)
    _print(report)
    if args.output:
        args.output.write_text(json.dumps(report, indent=1, ensure_ascii=True))
        print(f"{args.output}: written")
    sys.exit(0 if report["holds"] else 1)


def _gold(args: argparse.Namespace) -> dict:
    rows = check_gold(args.data_dir, args.limit)
    # Another problem's answer or program can be right (0.5 for 1/2), so these are listed for a person to check.
    needed = {"its golds": 1.0, "its own": 1.0, "return [], as mended": 1.0, "return [], as published": 0.0}
    return {
        "rows": rows,
        "holds": all(row["as expected"] >= needed.get(row["graded"], 0.99) * row["count"] for row in rows),
    }


def _copied(args: argparse.Namespace) -> dict:
    rows = copied(args.data_dir, args.cores, args.limit)
    most = {
        "a formula of the question": 0.005,
        "of these, golds with variables": 0.03,
    }  # paid share of copies
    left = {row["graded"]: (row["count"] - row["as expected"]) / max(row["count"], 1) for row in rows}
    return {"rows": rows, "holds": all(left[graded] < share for graded, share in most.items())}


def _malformed(args: argparse.Namespace) -> dict:
    rows, summary = check_malformed(args.count, args.seed, args.cores, args.timeout)
    bad = [name for name in ("lost", "correct", "failed", "good_wrong", "stalled") if summary[name]]
    return {"rows": rows, "summary": summary, "holds": not bad}


def _print(report: dict) -> None:
    console = Console(width=None if sys.stdout.isatty() else 200)
    shown = [{name: value for name, value in row.items() if name != "others"} for row in report["rows"]]
    table = Table(*shown[0])
    for row in shown:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table, markup=False)
    for row in report["rows"]:
        for other in row.get("others", [])[:10]:
            console.print(f"{row['benchmark']}, {row['graded']}: {other}"[:300], markup=False)
    if "summary" in report:
        console.print(", ".join(f"{name} {value}" for name, value in report["summary"].items()), markup=False)
    console.print("jail: " + "; ".join(report["jail"]), markup=False)
    console.print("it holds" if report["holds"] else "IT DOES NOT HOLD")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="gold | copied | malformed")
    gold = commands.add_parser("gold", help="benchmarks' own answers and solutions")
    gold.add_argument("--data-dir", type=Path, required=True, metavar="FOLDER", help="with math500/, humaneval/, ...")
    gold.add_argument("--limit", type=int, metavar="N", help="only the first N programs of each set")
    gold.set_defaults(run=_gold)
    copies = commands.add_parser("copied", help="formulas of the question as answers")
    copies.add_argument("--data-dir", type=Path, required=True, metavar="FOLDER", help="with math_train/ or math500/")
    copies.add_argument("--limit", type=int, metavar="N", help="only the first N problems")
    copies.add_argument("--cores", type=int, default=2, help="grades at a time (default 2)")
    copies.set_defaults(run=_copied)
    bad = commands.add_parser("malformed", help="responses made to fool, freeze or crash a grader")
    bad.add_argument("--count", type=int, default=10_000, metavar="N", help="responses (default 10000)")
    bad.add_argument("--seed", type=int, default=0, help="seed of the variations (default 0)")
    bad.add_argument("--cores", type=int, default=2, help="grades at a time (default 2)")
    bad.add_argument("--timeout", type=float, default=2.0, metavar="SECONDS", help="for a grade or test (default 2)")
    bad.set_defaults(run=_malformed)
    for command in (gold, copies, bad):
        command.add_argument("--output", type=Path, metavar="FILE.json", help="write the rows to this JSON file")
    return parser


if __name__ == "__main__":
    main()
