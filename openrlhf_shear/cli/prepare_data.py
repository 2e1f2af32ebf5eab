"""Prepare and check a data set to train on: the file OpenRLHF reads, and a report of what was dropped and why."""

import argparse
from pathlib import Path

from openrlhf_shear.cli import frame
from openrlhf_shear.data.files import KINDS
from openrlhf_shear.data.sources import SOURCES
from openrlhf_shear.data.training_file import NothingKept, Options, Report, write_training_file
from openrlhf_shear.report.tables import Table, print_tables

EPILOG = """\
Sources: math (problem, solution), gsm8k (question, answer), eurus-code (prompt, reward_model), and columns, any file
with the two columns you name. A label is a gold answer, a list of equivalent ones, or the tests of a program.

  python -m openrlhf_shear.cli.prepare_data --source math --input EleutherAI/hendrycks_math --output math.jsonl --check
  python -m openrlhf_shear.cli.prepare_data --source columns --input problems.parquet \\
      --prompt-key question --label-key tests --output code.jsonl --exclude HumanEval.jsonl.gz

Each row is {"prompt": [{"role": "system", ...}, {"role": "user", ...}], "label": "...", "datasource": "..."}. Train on
it with

  --data.prompt_dataset math.jsonl --data.input_key prompt --data.label_key label --data.apply_chat_template
  --reward.remote_url math    (code for tests)

The same options write the same files. docs/datasets.md says what each reason in the report means.
"""


def _flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--source", required=True, choices=SOURCES, help="the layout of the rows")
    add("--input", help=f"file ({', '.join(KINDS)}), folder or hub id (default: the source's on the hub)")
    add("--split", default="train", help="split of a folder or hub id; a file has one (default train)")
    add("--config", nargs="+", metavar="NAME", help="configurations of a hub id (default: all it needs)")
    add("--output", type=Path, required=True, help="the .jsonl file to write")
    add("--overwrite", action="store_true", help="replace an output that is there")
    add("--prompt-key", help="column of the problem (default: the source's)")
    add("--label-key", help="column of the answer or tests (default: the source's)")
    add("--system", help="system turn of every prompt, '' for none (default: the source's)")
    add("--max-prompt-tokens", type=int, help="drop longer prompts; with --tokenizer")
    add("--tokenizer", help="folder or hub id of the tokenizer that counts them")
    add("--exclude", nargs="+", metavar="FILE", help="drop the problems of these benchmark files")
    add("--check", action="store_true", help="drop gold answers that are not graded correct themselves")
    add("--levels", metavar="FROM-TO", help="of MATH: problems of these levels alone, e.g. 3-5, or 5 (default: all)")
    add("--limit", type=int, help="keep at most so many")
    add("--seed", type=int, help="shuffle with this seed (default: the order of the rows)")


@frame.command(_flags, __doc__, EPILOG)
def main(args: argparse.Namespace) -> None:
    options = Options(**vars(args))

    def read(rows):  # where a limit can end it early, how far it gets is not known
        return frame.progress(rows.rows, "reading", rows.total if args.limit is None else None)

    try:
        report = write_training_file(options, read)
    except NothingKept as error:
        _print(error.report)
        raise frame.Shortfall(error) from error
    _print(report)
    print(f"{options.output}\n{options.report_path}")


def _print(report: Report) -> None:
    rows = [("read", report.read, ""), *((f"kept: {kind}", count, "") for kind, count in sorted(report.kinds.items()))]
    for name, reason in report.as_json()["dropped"].items():
        detail = " ".join(reason["detail"].split())[:120]
        rows.append((f"dropped: {name}", reason["rows"], f"row {reason['row']}: {detail}"))
    print_tables([Table("", ("", "rows", "the first of them"), rows, left=("the first of them",))])


if __name__ == "__main__":
    main()
