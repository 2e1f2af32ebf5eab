"""Tables and pictures over finished runs, as files and as one page: methods x benchmarks, curves, ablations, time."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from openrlhf_shear.evaluation.comparison.runs import ReportError, read_run

EPILOG = """\
A run is one method, backbone, task and seed: the folder of a training run (run.json and a TensorBoard log with
eval/suite/... scalars) or of an evaluation (results.json). Runs that differ in the seed alone become one row: mean and
sample standard deviation. Of a method with several settings, the table shows the one that its ablations start from,
and the ablations become figures. A figure is made when the runs hold what it shows; the page lists the others and why.

  python -m openrlhf_shear.cli.report runs/grpo-* runs/shear-* --output report
  python -m openrlhf_shear.cli.report runs/* --output report --select last

It writes index.html (open it in any browser; it needs no other file), table_TASK.md, .csv and .tex (the paper's form,
needs booktabs and xcolor), and each figure as .png, .svg and its numbers as .csv. Values are percent.
"""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m openrlhf_shear.cli.report",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs, e.g. runs/*")
    parser.add_argument(
        "--output", required=True, type=Path, metavar="DIR", help="folder to write into; made if missing"
    )
    parser.add_argument(
        "--select",
        type=_selection,
        default="best",
        metavar="best|last|STEP",
        help="the checkpoint that stands for a seed: that of the best benchmark average (the paper's rule, the "
        "default), the last, or the one at a training step",
    )
    args = parser.parse_args(argv)
    if args.output.exists() and not args.output.is_dir():
        parser.error(f"--output {args.output} is a file; name a folder")
    # Late, so that --help and errors in the line are quick.
    from openrlhf_shear.evaluation.comparison.page import make_report, write_report

    try:
        report = make_report([read_run(folder) for folder in dict.fromkeys(args.runs)], args.select)
    except ReportError as error:
        parser.error(str(error))
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    written = write_report(
        report, args.output, lambda pictures: track(pictures, "drawing", console=console, transient=True)
    )
    _print(report, written)


def _selection(text: str) -> str | int:
    if text in ("best", "last"):
        return text
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"must be best, last or a training step: got {text!r}")


def _print(report, written: list[Path]) -> None:
    from openrlhf_shear.evaluation.comparison.tables import table_of
    from openrlhf_shear.report.tables import print_tables

    print_tables(map(table_of, report.tables))
    for run in report.runs:
        for note in run.notes:
            print(f"note: {run.folder}: {note}", file=sys.stderr)
    for omission in report.omitted:
        print(f"left out: {omission.heading}: {omission.reason}", file=sys.stderr)
    print(f"{len(written)} files in {written[-1].parent}\n{written[-1]}")


if __name__ == "__main__":
    main()
