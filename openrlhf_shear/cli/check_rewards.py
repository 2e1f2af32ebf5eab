"""Check that attacks on rewards fail on this machine.

  escapes    a graded program attacks this machine
  attacks    a reward file, a reward server or a response attacks the rewards of others

The command tries every known attack, and shows what refuses it.

gold and malformed check the graders, not this machine: python benchmarks/check_rewards.py in a clone.
For all other checks of this machine: python -m openrlhf_shear.cli.doctor
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from openrlhf_shear.doctor.machine import refused
from openrlhf_shear.line import frame
from openrlhf_shear.report.tables import Table, print_tables
from openrlhf_shear.rewards.attacks import COUNT, try_attacks
from openrlhf_shear.rewards.jail import find_jail
from openrlhf_shear.rewards.jail.escapes import try_escapes

IN_A_CLONE = ("gold", "malformed")


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("escapes", "attacks"), help="which attacks to try")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="also write the table as JSON (default: none)")


@frame.command(_flags, __doc__)
def check(args: argparse.Namespace) -> None:
    jail = find_jail()
    tried = try_escapes(jail) if args.what == "escapes" else frame.progress(try_attacks(), "attacks", COUNT)
    what = args.what.removesuffix("s")
    rows = [{what: name, "refused by": by, "what happened": said} for name, by, said in tried]
    worked = [row[what] for row in rows if not refused(row["what happened"])]
    print_tables([Table("", tuple(rows[0]), [tuple(row.values()) for row in rows], left=tuple(rows[0]))])
    print("jail: " + "; ".join(jail.mechanisms))
    print(f"IT DOES NOT HOLD: {', '.join(worked)}" if worked else f"it holds: {len(rows)} tried, all refused")
    if args.output:
        frame.write_json(args.output, {"rows": rows, "holds": not worked, "jail": list(jail.mechanisms)})
    if worked:
        sys.exit(1)


def main(argv: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in IN_A_CLONE:
        frame.refuse(
            check.parser(), f"{words[0]} is for a clone: python benchmarks/check_rewards.py {shlex.join(words)}"
        )
    check(words)


if __name__ == "__main__":
    main()
