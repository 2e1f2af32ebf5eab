"""Check this machine, or every node of a Ray cluster, before a run: what is wrong, and what to do about it."""

import argparse
import socket
import sys
from dataclasses import asdict
from pathlib import Path

from openrlhf_shear.doctor.node import check_node
from openrlhf_shear.doctor.result import Result
from openrlhf_shear.line import frame
from openrlhf_shear.report.tables import Cell, Table, print_tables

EPILOG = """\
It checks:
  - versions against this package's pins
  - the NVIDIA driver against torch's CUDA (if the driver is too old, torch sees no GPU and training is refused)
  - flash-attn
  - the jail for graded programs; it tries every known escape from the jail
  - free memory, /dev/shm, disk, open files
  - the hub

  python -m openrlhf_shear.cli.doctor
  python -m openrlhf_shear.cli.doctor --path /data/runs --json doctor.json
  RAY_ADDRESS=10.0.0.1:6379 python -m openrlhf_shear.cli.doctor --cluster

With --cluster it checks every node of the Ray cluster at RAY_ADDRESS, or of the cluster started on this machine, and
lists differences between the nodes. The exit code is 1 if any check fails. The flags of a training run are checked by
its --dry_run.
"""
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def _flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--path", type=Path, default=Path(), metavar="DIR", help="where runs will be written (default: this folder)")
    add("--json", type=Path, metavar="FILE", help="also write all results to this file (default: none)")
    add("--cluster", action="store_true", help="check every node of the Ray cluster (default: this machine)")
    about = "seconds to wait for the results of a cluster's nodes (default: 300)"
    add("--seconds", type=float, default=300.0, metavar="S", help=about)


@frame.command(_flags, __doc__, EPILOG)
def main(args: argparse.Namespace) -> None:
    overall: list[Result] = []
    if args.cluster:
        from openrlhf_shear.train.nodes.doctor import check_cluster

        nodes, overall = check_cluster(args.path, args.seconds)
    else:
        nodes = {socket.gethostname(): list(frame.progress(check_node(args.path), "checks"))}
    everything = [(name, result) for name, results in ({"cluster": overall} | nodes).items() for result in results]
    # For a cluster only warnings and failures; for this machine everything, without the machine's name.
    shown = [(name, result) for name, result in everything if not overall or result.status != "ok"]
    rows = [(name, each.name, Cell(each.status, _COLOURS[each.status]), each.seen, each.remedy) for name, each in shown]
    first = 0 if overall else 1
    headings = ("node", "check", "", "seen", "what to do")[first:]
    if rows:
        print_tables([Table("", headings, [row[first:] for row in rows], left=headings)])
    statuses = [result.status for _, result in everything]
    message = ", ".join(f"{statuses.count(status)} {status}" for status in _COLOURS)
    print(f"{len(statuses)} checks on {', '.join(nodes) or 'no node'}: {message}")
    failed = "fail" in statuses
    if args.json:
        content = {name: [asdict(result) for result in results] for name, results in nodes.items()}
        cluster = [asdict(result) for result in overall]
        frame.write_json(args.json, {"ok": not failed, "nodes": content, "cluster": cluster})
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
