"""The runs behind the lab's studies: a compressed table for each study, with a row for each run.

    PYTHONPATH=. python benchmarks/run_tables.py unpack bookkeeping_runs runs/ledger/lab    # so that the lab resumes
    PYTHONPATH=. python benchmarks/run_tables.py pack bookkeeping_runs runs/ledger/lab      # adds the folder's runs
    python -c 'import pandas; print(pandas.read_json("benchmarks/results/bookkeeping_runs.jsonl.xz", lines=True))'

A row is a run's file. It has the rule, the seed, accuracies, and metrics by step. `settings` are those that differ from
the lab's defaults, `start` is the SHA-256 of the start policy, and `made` has the commit, command and machine.
Runs are unpacked to where today's lab looks for them, even if the rule's file has changed since their commit.
"""

import argparse
import functools
import json
import lzma
from collections.abc import Iterable
from pathlib import Path

from openrlhf_shear.lab.runs import jobs
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import parse_rules

RESULTS = Path(__file__).resolve().parent / "results"
_BOOKKEEPING = ("bookkeeping_runs", "bookkeeping_again_runs", "bookkeeping_gates_runs")
STUDIES = (*_BOOKKEEPING, "credit_questions_runs", "credit_bench_runs", "step_size_runs", "question_4_runs")


def table_of(study: str) -> Path:
    return RESULTS / f"{study}.jsonl.xz"


def read(table: Path) -> list[dict]:
    if not table.is_file():
        return []
    with lzma.open(table, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write(table: Path, rows: Iterable[dict]) -> None:
    with lzma.open(table, "wt", encoding="utf-8", preset=9 | lzma.PRESET_EXTREME) as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)


def place(row: dict) -> Path:
    """Return the run's file below the lab's --output."""
    return _folder(row["rule"], row["start"], json.dumps(row["settings"])) / f"seed{row['seed']:03d}.json"


@functools.cache
def _folder(rule: str, start: str, settings: str) -> Path:
    (job,) = jobs(LabSettings(**json.loads(settings)), parse_rules(rule), [0], Path(), start, Path())
    return job.path.parent


def unpack(table: Path, output: Path) -> int:
    """Write the runs that are missing below the lab's `output`; return their number."""
    missing = [(path, row) for row in read(table) if not (path := output / place(row)).exists()]
    for path, row in missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(row) + "\n")
    return len(missing)


def pack(table: Path, output: Path) -> int:
    """Add the runs below the lab's `output` to the table; return the number of its rows."""
    rows = {place(row): row for row in read(table)}
    for file in output.glob("runs/*/*/seed*.json"):
        row = json.loads(file.read_text())
        rows.setdefault(place(row), row)
    write(table, [rows[path] for path in sorted(rows)])
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("unpack", "pack"))
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("output", type=Path, help="the lab's --output")
    args = parser.parse_args()
    if args.action == "unpack":
        print(f"{args.output}: {unpack(table_of(args.study), args.output)} runs unpacked")
    else:
        print(f"{table_of(args.study)}: {pack(table_of(args.study), args.output)} runs")


if __name__ == "__main__":
    main()
