"""The credit bench: rows of a leaderboard of credit rules, on tasks whose every first error is known.

`run` trains rules on the quick track and writes a row for each rule and task. `table` makes the leaderboard from rows.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from openrlhf_shear.lab.settings import BASELINE, QUICK, SEEDS, SHIPPED, TRACKS, Tuning, parse_rates
from openrlhf_shear.line import frame

ROWS = Path("benchmarks/results/credit_bench.jsonl")
PAGE, SORTED = Path("docs/credit-bench.md"), Path("docs/leaderboard.html")
EPILOG = """\
examples:
  {prog} run --rules my_module:MyRule,my_module:MyRule/matched
  {prog} run --rules shear --tasks bookkeeping --read_only --output runs/ledger/lab    # trains nothing
  {prog} table

Rules have the names of the lab (shear-lab --help). uniform, which is GRPO, is trained beside them. Every row has all
seeds of its task. Finished runs are kept, and the same command resumes.
"""
INTERRUPTED = "interrupted; finished runs are kept, and the same command resumes"


def _flags(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="run | table")
    run = frame.plainly(actions.add_parser("run", help="train rules and write their rows", description=__doc__))
    run.add_argument("--rules", metavar="RULE,...", required=True, help="rules to compare with uniform")
    about = f"tasks, of {', '.join(TRACKS)} (default: %(default)s)"
    run.add_argument("--tasks", metavar="TASK,...", default=",".join(QUICK), help=about)
    about = "folder of the runs, to write or to resume in (default: %(default)s)"
    run.add_argument("--output", type=Path, metavar="DIR", default=Path("runs/credit_bench"), help=about)
    about = "continuations for each value that the task does not settle (default: 32)"
    run.add_argument("--continuations", type=int, default=32, metavar="N", help=about)
    run.add_argument(
        "--start", default=SHIPPED, metavar="POLICY", help="start policy, as for the lab (default: shipped)"
    )
    run.add_argument("--learning-rate", type=float, default=1e-4, metavar="RATE", help="of all rules (default: 1e-4)")
    about = "also train uniform at these rates, e.g. 7e-5,1.4e-4,2e-4: rules are compared with it at equal steps"
    run.add_argument("--baseline_rates", metavar="RATE,...", help=about)
    about = "also train every rule at these rates: its gain is read on this curve too, where its steps are uniform's"
    run.add_argument("--curve_rates", metavar="RATE,...", help=about)
    run.add_argument("--read_only", action="store_true", help="read the finished runs, and train nothing")
    frame.add_knobs(run.add_argument_group("the learning rate of each rule"), Tuning)
    table = frame.plainly(actions.add_parser("table", help="make the leaderboard from the rows", description=__doc__))
    about = "page to update (default: %(default)s)"
    table.add_argument("--page", type=Path, metavar="FILE.md", default=PAGE, help=about)
    about = "page to write, whose tables can be sorted (default: %(default)s)"
    table.add_argument("--sorted", type=Path, metavar="FILE.html", default=SORTED, help=about)
    for action in (run, table):
        about = "JSON lines, a row each (default: %(default)s)"
        action.add_argument("--rows", type=Path, metavar="FILE", default=ROWS, help=about)


@frame.command(_flags, __doc__, EPILOG, None, (RuntimeError,), INTERRUPTED)
def main(args: argparse.Namespace) -> None:
    _run(args) if args.action == "run" else _table(args)


def _run(args: argparse.Namespace) -> None:
    frame.at_least(args, continuations=1)
    trials = frame.knobs_of(args, Tuning)
    given = {"--baseline_rates": args.baseline_rates, "--curve_rates": args.curve_rates}
    rates, curve_rates = (parse_rates(text, flag) if text else [] for flag, text in given.items())
    tasks = args.tasks.split(",")
    if unknown := [task for task in tasks if task not in TRACKS]:
        raise ValueError(f"--tasks: no task is called {unknown[0]!r}; use {', '.join(TRACKS)}")
    # Imported late, so that --help is instant.
    import torch

    from openrlhf_shear.lab import bench
    from openrlhf_shear.lab.policy import fingerprint, start_policy
    from openrlhf_shear.lab.runs import finished, jobs, run_all, tuned
    from openrlhf_shear.lab.variants import Variant, parse_rules
    from openrlhf_shear.lab.worth import LabRun
    from openrlhf_shear.report.bootstrap import Bootstrap

    variants = parse_rules(args.rules)
    if BASELINE not in [variant.name for variant in variants]:
        variants = [*parse_rules(BASELINE), *variants]
    torch.set_num_threads(1)

    def write_rows(task: str) -> None:
        settings = replace(TRACKS[task], start=args.start, learning_rate=args.learning_rate)
        for variant in variants:  # errors in a rule show before anything is sampled
            variant.rule(settings)
        start = start_policy(settings)
        identity = fingerprint(start)
        place = start, identity, args.output
        best = tuned(trials, settings, variants, *place, train=not args.read_only)

        def runs_at(rates: dict[str, float], rules: list[Variant]) -> list[LabRun]:
            wanted = jobs(settings, rules, SEEDS[task], *place, rates)
            found = finished(wanted) if args.read_only else run_all(wanted, trials.workers)
            return [run for run in found if run.seed in SEEDS[task]]

        runs = runs_at(best, variants)
        baseline = [variant for variant in variants if variant.name == BASELINE]
        its = {rate: runs_at({BASELINE: rate}, baseline) for rate in {*rates} - {best[BASELINE]}}
        its[best[BASELINE]] = [run for run in runs if run.rule == BASELINE]
        curves = {rate: runs_at(dict.fromkeys(best, rate), variants) for rate in curve_rates}
        version = bench.task_version(settings, start)
        truth = bench.kept_truth(settings, start, identity, args.continuations, args.output)
        about = {"version": version, "start": identity[:12], "baseline_learning_rate": best[BASELINE]}
        for variant in frame.progress(variants, task, unit="rule"):
            mine = [run for run in runs if run.rule == variant.name]
            curve = {rate: [run for run in of if run.rule == variant.name] for rate, of in curves.items()}
            at, curve = bench.at_rate(settings, best, variant), curve | {best[variant.name]: mine}
            row = bench.make_row(at, variant, mine, its, curve, truth, about, Bootstrap())
            print(f"{args.rows}: {variant.name}{bench.write_row(row, args.rows)}", file=sys.stderr)

    for task in tasks:
        write_rows(task)


def _table(args: argparse.Namespace) -> None:
    from openrlhf_shear.data.writing import write_text
    from openrlhf_shear.lab import bench, leaderboard
    from openrlhf_shear.lab.tasks import task_of
    from openrlhf_shear.report.findings import apart, picture_files, write_files
    from openrlhf_shear.report.tables import print_tables

    rows = bench.read_rows(args.rows)
    if not rows:
        raise ValueError(f"--rows: no rows in {args.rows}; make some with the action run")
    if not args.page.is_file():
        raise ValueError(f"--page: there is no file {args.page}; copy docs/credit-bench.md, whose tables are replaced")
    page = args.page.read_text(encoding="utf-8")
    versions = {task: bench.task_version(track, task_of(track).shipped()) for task, track in TRACKS.items()}
    boards = leaderboard.boards(rows, versions)
    write_text(args.page, leaderboard.markdown(boards, page))
    write_text(args.sorted, leaderboard.html(boards))
    pictures, _ = apart(board.picture for board in boards if board.current)
    largest = {picture.name: picture for picture in reversed(pictures)}  # of each task
    files = [file for picture in largest.values() for file in picture_files(picture) if file[0].endswith(".png")]
    written = write_files(args.page.parent / "images", files)
    print_tables([board.table for board in boards])
    print(args.page, args.sorted, *written, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
