"""What is wrong with this machine, or with any node of a Ray cluster, and what to do about it: before a run does."""

import argparse
import socket
import sys
from dataclasses import asdict, replace
from pathlib import Path

from openrlhf_shear.cli import frame
from openrlhf_shear.preflight import memory_check
from openrlhf_shear.preflight.doctor.node import check_node
from openrlhf_shear.preflight.doctor.result import Result, fail, ok, warn
from openrlhf_shear.report.tables import Cell, Table, print_tables

EPILOG = """\
Checked: versions against this package's pins; the NVIDIA driver against torch's CUDA (where it is too old, torch sees
no GPU and a training is refused); flash-attn; the jail of graded programs, and every way out of it, tried one by one;
free memory, /dev/shm, disk, open files; the ports that Ray uses, and who has them; the hub.

  python -m openrlhf_shear.cli.doctor
  python -m openrlhf_shear.cli.doctor --path /data/runs --deep --json doctor.json
  RAY_ADDRESS=10.0.0.1:6379 python -m openrlhf_shear.cli.doctor --cluster
  python -m openrlhf_shear.cli.doctor -- --algo.advantage.estimator shear ...    # the flags of a training run

With --cluster the same is checked on every node of the Ray cluster of RAY_ADDRESS, or else of the one that was started
on this machine, and what differs between its nodes is named. Behind -- stand the flags of train_ppo_ray: what is wrong
with them is told too, and the memory that they take of each GPU. The exit code is 1 if anything says fail.
"""
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def _flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--path", type=Path, default=Path(), metavar="DIR", help="where runs will be written (default: this folder)")
    add("--json", type=Path, metavar="FILE", help="write all results too")
    add("--deep", action="store_true", help="import torch, ray, deepspeed and vLLM too: a minute or more")
    add("--cluster", action="store_true", help="check every node of the Ray cluster")
    add("line", nargs="*", metavar="-- FLAGS", help="of a training run, to be checked too")
    add("--seconds", type=float, default=300.0, metavar="S", help="to wait for the nodes of a cluster (default 300)")


@frame.command(_flags, __doc__, EPILOG)
def main(args: argparse.Namespace) -> None:
    overall: list[Result] = []
    if args.cluster:
        from openrlhf_shear.fork.doctor import check_cluster

        nodes, overall = check_cluster(args.path, args.deep, args.seconds)
    else:
        nodes = {socket.gethostname(): list(frame.progress(check_node(args.path, args.deep), "checks"))}
    if args.line:
        first_node = next(iter(nodes), "")
        nodes[first_node] = [*nodes.get(first_node, []), *_line(args.line)]
    everything = [(name, result) for name, results in ({"cluster": overall} | nodes).items() for result in results]
    # Of a cluster what is not in order, of one machine all, without its name.
    shown = [(name, one) for name, one in everything if not overall or one.status != "ok"]
    rows = [(name, one.name, Cell(one.status, _COLOURS[one.status]), one.seen, one.remedy) for name, one in shown]
    first = 0 if overall else 1
    headings = ("node", "check", "", "seen", "what to do")[first:]
    if rows:
        print_tables([Table("", headings, [row[first:] for row in rows], left=headings)])
    statuses = [result.status for _, result in everything]
    told = ", ".join(f"{statuses.count(status)} {status}" for status in _COLOURS)
    print(f"{len(statuses)} checks on {', '.join(nodes) or 'no node'}: {told}")
    failed = "fail" in statuses
    if args.json:
        content = {name: [asdict(result) for result in results] for name, results in nodes.items()}
        cluster = [asdict(result) for result in overall]
        frame.write_json(args.json, {"ok": not failed, "nodes": content, "cluster": cluster})
    if failed:
        sys.exit(1)


def _line(words: list[str]) -> list[Result]:
    """What training would say of these flags; print the memory that they take."""
    from openrlhf_shear.cli.train_ppo_ray import examine

    name = "training flags"
    line, findings, _ = examine(words)
    results = []
    for refusal in findings.ordered():
        remedy = f"use {refusal.use}" if refusal.use else "see train_ppo_ray --help"
        results.append(fail(name, str(replace(refusal, use="")), remedy))
    if line:
        memory_check.show(vars(line.args))
    results += [warn(name, str(told), "no action needed if that is meant") for told in findings.told]
    return results or [ok(name, "they can be used")]


if __name__ == "__main__":
    main()
