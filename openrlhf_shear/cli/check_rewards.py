"""Show that the jail of graded programs holds on this machine.

escapes    what such a program may try against this machine, tried one by one, and what refuses it

gold and malformed check the graders, not this machine: python benchmarks/check_rewards.py in a clone.
The rest of this machine: python -m openrlhf_shear.cli.doctor
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from openrlhf_shear.cli import frame
from openrlhf_shear.preflight.doctor.machine import refused
from openrlhf_shear.report.tables import Table, print_tables
from openrlhf_shear.rewards.jail import find_jail
from openrlhf_shear.rewards.jail.escapes import try_escapes

IN_A_CLONE = ("gold", "malformed")


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("escapes",), help="what to check")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write the rows too")


@frame.command(_flags, __doc__)
def escapes(args: argparse.Namespace) -> None:
    jail = find_jail()
    rows = [{"escape": name, "refused by": by, "what happened": said} for name, by, said in try_escapes(jail)]
    holds = all(refused(row["what happened"]) for row in rows)
    print_tables([Table("", tuple(rows[0]), [tuple(row.values()) for row in rows], left=tuple(rows[0]))])
    print("jail: " + "; ".join(jail.mechanisms))
    print("it holds" if holds else "IT DOES NOT HOLD")
    if args.output:
        frame.write_json(args.output, {"rows": rows, "holds": holds, "jail": list(jail.mechanisms)})
    if not holds:
        sys.exit(1)


def main(argv: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in IN_A_CLONE:
        frame.refuse(
            escapes.parser(), f"{words[0]} is for a clone: python benchmarks/check_rewards.py {shlex.join(words)}"
        )
    escapes(words)


if __name__ == "__main__":
    main()
