"""Prepare and check a training data set: write the file that OpenRLHF reads, and a report of all dropped rows."""

import argparse
from pathlib import Path

from openrlhf_shear.data.files import KINDS
from openrlhf_shear.data.sources import SOURCES
from openrlhf_shear.data.training_file import EmptyResult, Options, RowReport, write_training_file
from openrlhf_shear.line import frame
from openrlhf_shear.report.tables import Table, print_tables

EPILOG = """\
Sources: math (problem, solution), gsm8k (question, answer), eurus-code (prompt, reward_model), and columns: any file
with two columns that you name. A label is a gold answer, a list of equivalent gold answers, or the tests of a program.

  python -m openrlhf_shear.cli.prepare_data --source math --input EleutherAI/hendrycks_math --output math.jsonl --check
  python -m openrlhf_shear.cli.prepare_data --source columns --input problems.parquet \\
      --prompt-key question --label-key tests --output code.jsonl --exclude HumanEval.jsonl.gz

Each row is {"prompt": [{"role": "system", ...}, {"role": "user", ...}], "label": "...", "datasource": "..."}. Train on
it with

  --data.prompt_dataset math.jsonl --data.input_key prompt --data.label_key label --data.apply_chat_template
  --reward.remote_url math    (code for tests)

The same options always write the same files. docs/datasets.md explains each reason in the report.
"""


def _flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--source", required=True, choices=SOURCES, help="layout of the input rows")
    add("--input", help=f"file ({', '.join(KINDS)}), folder or hub id (default: the source's data set on the hub)")
    add("--split", default="train", help="split of a folder or hub id; a file has only one split (default: train)")
    add("--config", nargs="+", metavar="NAME", help="configurations of a hub id (default: all that the source needs)")
    add("--output", type=Path, required=True, help="the .jsonl file to write")
    add("--overwrite", action="store_true", help="replace an existing output (default: refuse)")
    add("--prompt-key", help="column of the problem; a.b for the field b of column a (default: the source's)")
    add("--label-key", help="column of the answer or tests, likewise (default: the source's)")
    add("--system", help="system turn of every prompt, '' for none (default: the source's)")
    add("--max-prompt-tokens", type=int, help="drop prompts with more tokens; needs --tokenizer (default: no limit)")
    add("--tokenizer", help="folder or hub id of the tokenizer that counts prompt tokens")
    add("--exclude", nargs="+", metavar="FILE", help="drop the problems of these benchmark files (default: none)")
    add("--check", action="store_true", help="drop rows whose gold answer is not graded as correct, or is doubtful")
    add("--levels", metavar="FROM-TO", help="keep only these levels of MATH, e.g. 3-5, or 5 (default: all)")
    add("--limit", type=int, help="keep at most this many rows (default: all)")
    add("--seed", type=int, help="shuffle the rows with this seed (default: keep their order)")


@frame.command(_flags, __doc__, EPILOG)
def main(args: argparse.Namespace) -> None:
    options = Options(**vars(args))
    try:
        report = write_training_file(options)
    except EmptyResult as error:
        _print(error.report)
        raise frame.Shortfall(error) from error
    _print(report)
    print(f"{options.output}\n{options.report_path}")


def _print(report: RowReport) -> None:
    rows = [("read", report.read, ""), *((f"kept: {kind}", count, "") for kind, count in sorted(report.kinds.items()))]
    for name, reason in report.as_json()["dropped"].items():
        detail = " ".join(reason["detail"].split())[:120]
        rows.append((f"dropped: {name}", reason["rows"], f"row {reason['row']}: {detail}"))
    print_tables([Table("", ("", "rows", "first example"), rows, left=("first example",))])


if __name__ == "__main__":
    main()
