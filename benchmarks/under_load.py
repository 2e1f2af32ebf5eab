"""Run a command beside processes that keep every core busy: does it succeed on a machine that others use?

    python benchmarks/under_load.py 40 --together 10            # ten starts of a run's private Ray
    python benchmarks/under_load.py 30 --times 1 -- make test   # any command

The load is the number of busy processes. Exit code 1: a command failed. It prints a table: exit code, wall
seconds, processor seconds of the command with its children, and the load average at its end.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from measure import environment, print_table, script_parser, write_json

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
    began, process = time.monotonic(), subprocess.Popen(command)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
    row = {"code": process.returncode, "seconds": round(seconds, 1), "cpu": round(cpu, 1)}
    return row | {"load": round(os.getloadavg()[0], 1)}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("load", type=int, help="number of busy processes")
    parser.add_argument("--times", type=int, default=10, help="how often the command runs")
    parser.add_argument("--together", type=int, default=1, help="how many of them at a time (default 1)")
    parser.add_argument("command", nargs="*", help="after --; default: start a private Ray and run a task in it")
    args = parser.parse_args()
    about = environment()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.load)]
    try:
        with ThreadPoolExecutor(args.together) as pool:
            rows = list(pool.map(measured, [args.command or [sys.executable, "-c", START]] * args.times))
    finally:
        for process in busy:
            process.kill()
    write_json(args.output, {"environment": about, "busy": args.load, "together": args.together, "rows": rows})
    print_table(f"at a load of {args.load}", rows, _COLUMNS)
    sys.exit(any(row["code"] for row in rows))


if __name__ == "__main__":
    main()
