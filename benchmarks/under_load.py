"""Run a command beside processes that keep every core busy: does it succeed on a machine that others use?

    python benchmarks/under_load.py 40                          # ten starts of a run's private Ray
    python benchmarks/under_load.py 30 --times 1 -- make test   # any command

The load is the number of busy processes. Exit code 1: a command failed. It prints JSON and a table: exit code, wall
seconds, processor seconds of the command with its children, and the load average at its end.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

from measure import environment, print_table

START = """
import ray
from openrlhf_shear.train.nodes import own_ray
own_ray.start({}, include_dashboard=False, num_cpus=2)
assert ray.get(ray.remote(lambda: 41 + 1).remote()) == 42
own_ray.end()
"""
_COLUMNS = {"code": "exit code", "seconds": "seconds", "cpu": "CPU seconds", "load": "load"}


def measured(command: list[str]) -> dict:
    """Run a command to its end; return its exit code, wall and processor seconds, and the load average then."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    code = subprocess.run(command).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = time.monotonic() - began
    return {"code": code, "seconds": round(seconds, 1), "cpu": round(cpu, 1), "load": round(os.getloadavg()[0], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", type=int, help="number of busy processes")
    parser.add_argument("--times", type=int, default=10, help="how often the command runs")
    parser.add_argument("command", nargs="*", help="after --; default: start a private Ray and run a task in it")
    args = parser.parse_args()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.load)]
    try:
        rows = [measured(args.command or [sys.executable, "-c", START]) for _ in range(args.times)]
    finally:
        for process in busy:
            process.kill()
    print(json.dumps({"environment": environment("cpu"), "rows": rows}))
    print_table(f"at a load of {args.load}", rows, _COLUMNS)
    sys.exit(any(row["code"] for row in rows))


if __name__ == "__main__":
    main()
