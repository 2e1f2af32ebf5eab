"""Make tables and figures of finished runs, as files and as a page: methods x benchmarks, curves, ablations, time."""

import argparse
import sys
from pathlib import Path

from openrlhf_shear.line import frame

EPILOG = """\
A run has a method, backbone, task and seed. It is the folder of a training run (run.json and a TensorBoard log with
eval/suite/... scalars) or of an evaluation (results.json). Runs that differ only in the seed become a single row: mean
and sample standard deviation. If a method has several settings, the table shows the setting that its ablations start
from, and the ablations become figures. A figure is made if the runs hold its data; the page lists missing figures with
the reason.

  python -m openrlhf_shear.cli.report runs/grpo-* runs/shear-* --output report
  python -m openrlhf_shear.cli.report runs/*-seed* --output report --select last

It writes index.html (open it in any browser; it needs no other file), first_and_last.md and .csv (the first and last
values of each run), table_TASK.md, .csv and .tex (the paper's form, needs booktabs and xcolor), and each figure as
.png, .svg and its numbers as .csv. Values are percent.
"""


def _flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs, e.g. runs/*-seed*")
    add("--output", required=True, type=Path, metavar="DIR", help="folder to write into; created if missing")
    about = (
        "checkpoint that counts for a seed: best benchmark average (the paper's choice), last, or at a training step "
        "(default: best)"
    )
    add("--select", type=_selection, default="best", metavar="best|last|STEP", help=about)


@frame.command(_flags, __doc__, EPILOG)
def main(args: argparse.Namespace) -> None:
    # Imported late, so that --help and errors in the flags are quick.
    from openrlhf_shear.evaluation.comparison.page import make_report, write_report
    from openrlhf_shear.evaluation.comparison.runs import read_run

    report = make_report([read_run(folder) for folder in dict.fromkeys(args.runs)], args.select)
    _print(report, write_report(report, args.output, lambda pictures: frame.progress(pictures, "drawing")))


def _selection(text: str) -> str | int:
    if text in ("best", "last"):
        return text
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"must be best, last or a training step: got {text!r}")


def _print(report, written: list[Path]) -> None:
    from openrlhf_shear.evaluation.comparison.tables import rests_on
    from openrlhf_shear.report.tables import print_tables

    print_tables([report.progress] if report.progress else [])
    print_tables(table for scores in report.tables for table in rests_on(scores))
    for run in report.runs:
        for note in run.notes:
            print(f"note: {run.folder}: {note}", file=sys.stderr)
    if report.omitted:
        headings = ", ".join(omission.heading for omission in report.omitted)
        print(f"left out, for reasons on the page: {headings}", file=sys.stderr)
    print(f"{len(written)} files in {written[-1].parent}\n{written[-1]}")


if __name__ == "__main__":
    main()
