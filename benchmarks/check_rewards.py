"""Do the rewards hold? Test the graders on benchmarks' own answers, and on answers that differ from them.

    python benchmarks/check_rewards.py gold --data-dir DATA
    python benchmarks/check_rewards.py near --data-dir DATA

- gold: gold answers and canonical solutions of downloaded benchmarks are graded correct, those of others wrong
- near: no answer is paid that differs from a gold in a single place, and golds are paid in every style of a response
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gold import canonical, empty_lists, gold_answers
from measure import print_table, script_parser, write_json
from near_mutants import near

from openrlhf_shear.rewards.jail import JailError, find_jail

# Another problem's answer or program can be right (0.5 for 1/2), so these are listed for a person to check.
_LEAST = {"its golds": 1.0, "its own": 1.0, "return [], as mended": 1.0, "return [], as published": 0.0}
_MOST_NEAR = 5  # mistaken grades of all: a few mutants equal their golds


def main(argv: Sequence[str] | None = None) -> None:
    parser = script_parser(__doc__)
    parser.add_argument("check", choices=_CHECKS)
    parser.add_argument("--data-dir", type=Path, required=True, metavar="FOLDER", help="with math500/, humaneval/, ...")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N programs of each set, or problems")
    parser.add_argument("--cores", type=int, default=2, help="grades at a time (default 2)")
    args = parser.parse_args(argv)
    try:
        jail = find_jail()
        rows, holds = _CHECKS[args.check](args)
    except (JailError, ValueError) as error:
        parser.exit(1, f"error: {error}\n")
    columns = {name: name for name in ("benchmark", "graded", "count", "as expected", "note")}
    print_table("it holds" if holds else "IT DOES NOT HOLD", rows, columns)
    for row in rows:
        for other in row["others"][:10]:
            print(f"{row['benchmark']}, {row['graded']}: {other}"[:300])
    write_json(args.output, {"rows": rows, "holds": holds, "jail": jail.mechanisms})
    sys.exit(not holds)


def _gold(args: argparse.Namespace) -> tuple[list[dict], bool]:
    programs = (grade(args.data_dir, args.limit, args.cores) for grade in (canonical, empty_lists))
    rows = [*gold_answers(args.data_dir), *(row for rows in programs for row in rows)]
    return rows, all(row["as expected"] >= _LEAST.get(row["graded"], 0.99) * row["count"] for row in rows)


def _near(args: argparse.Namespace) -> tuple[list[dict], bool]:
    rows = near(args.data_dir, args.cores, args.limit)
    return rows, sum(len(row["others"]) for row in rows) <= _MOST_NEAR


_CHECKS = {"gold": _gold, "near": _near}


if __name__ == "__main__":
    main()
