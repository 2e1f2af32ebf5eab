"""Prepare and check a data set to train on: the file OpenRLHF reads, and a report of what was dropped and why."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from openrlhf_shear.data.checks import Check, gold_graded, not_in, short, unique, usable
from openrlhf_shear.data.files import KINDS, Rows, open_rows
from openrlhf_shear.data.prepare import Report, line, prepare
from openrlhf_shear.data.sources import SOURCES, Source
from openrlhf_shear.data.writing import replacing
from openrlhf_shear.rewards.jail import JailError

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


class NothingKept(Exception):
    """Every row was dropped; `report` says why."""

    def __init__(self, report: Report):
        super().__init__("no row is left, so nothing was written; the table says why")
        self.report = report


def main(argv: list[str] | None = None) -> None:
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        report = run(args)
    except NothingKept as error:
        _print_table(error.report)
        sys.exit(f"prepare_data: {error}")
    except (ValueError, JailError) as error:  # DataError is a ValueError
        parser.error(str(error))
    _print_table(report)
    print(f"{args.output}\n{_report_path(args.output)}")


def run(args: argparse.Namespace) -> Report:
    """Reads, checks and writes the file and its report.

    Raises:
        NothingKept: no row is left; nothing was written.
        ValueError: an option, the input or an excluded file cannot be used.
    """
    source = _source(args)
    _check(args)
    name = args.input or source.hub
    found = open_rows(name, args.split, args.config or source.configs.get(name, ()))
    missing = [column for column in source.columns if column not in found.columns]
    if missing:
        raise ValueError(
            f"{name} has no column {', '.join(missing)}: got {', '.join(found.columns)}; "
            "use another --source, or --prompt-key and --label-key"
        )
    checks = _checks(args, source.system)
    datasource = Path(name).name.split(".")[0] if args.source == "columns" else args.source
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(args.output) as file:
        report = prepare(
            _shown(found, args.limit),
            source,
            checks,
            lambda problem: file.write(line(problem, source.system, datasource)),
            limit=args.limit,
            seed=args.seed,
        )
        if not report.kept:
            raise NothingKept(report)
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    with replacing(_report_path(args.output)) as file:
        json.dump(report.as_json() | {"options": options}, file, indent=2)
    return report


def _source(args: argparse.Namespace) -> Source:
    source = SOURCES[args.source]
    source = replace(
        source,
        prompt_key=args.prompt_key or source.prompt_key,
        label_key=args.label_key or source.label_key,
        system=source.system if args.system is None else args.system,
    )
    if args.source == "columns":
        for flag, value in (("input", args.input), ("prompt-key", args.prompt_key), ("label-key", args.label_key)):
            if not value:
                raise ValueError(f"--{flag} is needed with --source columns: got nothing; use --{flag} and a name")
    return source


def _check(args: argparse.Namespace) -> None:
    if args.output.suffix != ".jsonl":
        raise ValueError(
            f"--output must end with .jsonl, by which OpenRLHF knows it: got {args.output}; use train.jsonl"
        )
    for path in (args.output, _report_path(args.output)):
        if path.exists() and not args.overwrite:
            raise ValueError(f"{path} is there already; use --overwrite, or another --output")
    if (args.tokenizer is None) != (args.max_prompt_tokens is None):
        raise ValueError("--max-prompt-tokens and --tokenizer go together: got one of them; use both or neither")
    for flag, value in (("max-prompt-tokens", args.max_prompt_tokens), ("limit", args.limit)):
        if value is not None and value < 1:
            raise ValueError(f"--{flag} must be at least 1: got {value}; use e.g. 1024")


def _checks(args: argparse.Namespace, system: str | None) -> list[Check]:
    """In the order in which they are asked: what costs most comes last."""
    checks = [usable, unique()]
    if args.exclude:
        checks.append(not_in(args.exclude))
    if args.tokenizer is not None:
        checks.append(short(_tokenizer(args.tokenizer), args.max_prompt_tokens, system))
    if args.check:
        checks.append(gold_graded)
    return checks


def _tokenizer(name: str):
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"--tokenizer {name} cannot be loaded: {str(error).splitlines()[0]}") from error
    if tokenizer.chat_template is None:
        raise ValueError(f"--tokenizer must have a chat template: {name} has none; use the tokenizer of a chat model")
    return tokenizer


def _shown(found: Rows, limit: int | None) -> Iterable[dict]:
    from rich.console import Console
    from rich.progress import track

    # Where a limit can end it early, how far it gets is not known.
    total = found.total if limit is None else None
    yield from track(found.rows, "reading", total=total, console=Console(stderr=True), transient=True)


def _print_table(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "rows", "the first of them")
    table.add_row("read", str(report.read), "")
    for kind, rows in sorted(report.kinds.items()):
        table.add_row(f"kept: {kind}", str(rows), "")
    for name in report.by_size():
        reason = report.dropped[name]
        detail = " ".join(str(reason.example["detail"]).split())[:120]
        table.add_row(f"dropped: {name}", str(reason.rows), Text(f"row {reason.example['row']}: {detail}"))
    Console().print(table)


def _report_path(output: Path) -> Path:
    return output.with_name(output.name + ".report.json")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openrlhf_shear.cli.prepare_data",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--source", required=True, choices=SOURCES, help="the layout of the rows")
    parser.add_argument(
        "--input", help=f"file ({', '.join(KINDS)}), folder or hub id (default: the source's on the hub)"
    )
    parser.add_argument("--split", default="train", help="split of a folder or hub id; a file has one (default train)")
    parser.add_argument(
        "--config", nargs="+", metavar="NAME", help="configurations of a hub id (default: all it needs)"
    )
    parser.add_argument("--output", type=Path, required=True, help="the .jsonl file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an output that is there")
    parser.add_argument("--prompt-key", help="column of the problem (default: the source's)")
    parser.add_argument("--label-key", help="column of the answer or tests (default: the source's)")
    parser.add_argument("--system", help="system turn of every prompt, '' for none (default: the source's)")
    parser.add_argument("--max-prompt-tokens", type=int, help="drop longer prompts; with --tokenizer")
    parser.add_argument("--tokenizer", help="folder or hub id of the tokenizer that counts them")
    parser.add_argument("--exclude", nargs="+", metavar="FILE", help="drop the problems of these benchmark files")
    parser.add_argument("--check", action="store_true", help="drop gold answers that are not graded correct themselves")
    parser.add_argument("--limit", type=int, help="keep at most so many")
    parser.add_argument("--seed", type=int, help="shuffle with this seed (default: the order of the rows)")
    return parser


if __name__ == "__main__":
    main()
