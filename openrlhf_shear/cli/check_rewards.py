"""Try every known escape of a graded program from this machine's jail, and show what refuses it.

For all other checks of this machine: python -m openrlhf_shear.cli.doctor
"""

import argparse
import sys
from pathlib import Path

from openrlhf_shear.doctor.machine import refused
from openrlhf_shear.line import frame
from openrlhf_shear.report.tables import Table, print_tables
from openrlhf_shear.rewards.jail import find_jail
from openrlhf_shear.rewards.jail.escapes import try_escapes


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="also write the table as JSON (default: none)")


@frame.command(_flags, __doc__)
def main(args: argparse.Namespace) -> None:
    jail = find_jail()
    rows = [{"escape": name, "refused by": by, "what happened": outcome} for name, by, outcome in try_escapes(jail)]
    worked = [row["escape"] for row in rows if not refused(row["what happened"])]
    print_tables([Table("", tuple(rows[0]), [tuple(row.values()) for row in rows], left=tuple(rows[0]))])
    print("jail: " + "; ".join(jail.mechanisms))
    print(f"IT DOES NOT HOLD: {', '.join(worked)}" if worked else f"it holds: {len(rows)} tried, all refused")
    if args.output:
        frame.write_json(args.output, {"rows": rows, "holds": not worked, "jail": list(jail.mechanisms)})
    if worked:
        sys.exit(1)


if __name__ == "__main__":
    main()
