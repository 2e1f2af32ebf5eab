"""Run a command beside processes that keep every core busy: does it succeed on a machine that others use?

    python benchmarks/under_load.py 40 --together 10            # ten starts of a run's private Ray
    python benchmarks/under_load.py 30 --times 1 -- make test   # any command
    python benchmarks/under_load.py 30 --times 1 --tests        # processes, jails, time limits, servers; whole runs

The load is the number of busy processes. Exit code 1: a command failed. It prints a table: exit code, wall
seconds, processor seconds of the command with its children, and the load average at its end.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import environment, print_table, script_parser, write_json

_TESTS = Path(__file__).parents[1] / "tests"
START = """
import ray
from openrlhf_shear.train.nodes import own_ray
own_ray.start({}, include_dashboard=False, num_cpus=2)
assert ray.get(ray.remote(lambda: 41 + 1).remote()) == 42
own_ray.end()
"""
TESTS = {  # what a busy machine could break
    "jails": "unit/rewards/test_jail.py unit/rewards/test_code_jails.py unit/rewards/test_warm_jails.py",
    "graders": "unit/rewards/test_pool.py unit/rewards/test_function_workers.py unit/rewards/test_math_workers.py",
    "reward server": "unit/rewards/test_reward_server.py unit/rewards/test_serve_reward.py",
    "reward client": "unit/rewards/test_reward_client.py unit/rewards/test_breaker.py",
    "time limits": "unit/rewards/test_attacks.py unit/rewards/test_code_checkers.py",
    "signals and starts": "unit/train/test_attempts.py unit/train/test_start_ports.py",
    "escapes": "unit/rewards/test_check_rewards.py",
    "a training and its resume": "distributed/test_whole_run.py",
    "a kill and a resume": "distributed/test_faults.py -m faults -k run_saving",
}
_COLUMNS = {"name": "command", "code": "exit code", "seconds": "seconds", "cpu": "CPU seconds", "load": "load"}


def measured(name: str, command: list[str], load: int) -> dict:
    """Run a command to its end; return its exit code, wall and processor seconds, and the load average then."""
    patience = {"OPENRLHF_SHEAR_TEST_PATIENCE": str(max(1, load // (os.cpu_count() or 1)))}  # tests' limits for hangs
    began, process = time.monotonic(), subprocess.Popen(command, env=patience | os.environ)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
    row = {"name": name, "code": process.returncode, "seconds": round(seconds, 1), "cpu": round(cpu, 1)}
    return row | {"load": round(os.getloadavg()[0], 1)}


def main() -> None:
    parser = script_parser(__doc__, help="write the rows to this JSON file; with --tests its other rows stay")
    parser.add_argument("load", type=int, help="number of busy processes")
    parser.add_argument("--times", type=int, default=10, help="how often the command runs")
    parser.add_argument("--together", type=int, default=1, help="how many of them at a time (default 1)")
    parser.add_argument("--tests", nargs="*", choices=TESTS, metavar="NAME", help=f"run tests, all or: {list(TESTS)}")
    parser.epilog = "-- COMMAND: runs it; default: start a private Ray and run a task in it"
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, command = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    found = {"environment": environment(), "busy": args.load, "together": args.together, "rows": []}
    if args.tests is None:
        commands = [("", command or [sys.executable, "-c", START])] * args.times
    else:
        pytest = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(_TESTS)]
        files = {
            name: [f"{_TESTS}/{word}" if word.endswith(".py") else word for word in TESTS[name].split()]
            for name in args.tests or TESTS
        }
        commands = [(name, [*pytest, *words]) for name, words in files.items()]
        if args.output and args.output.exists():
            found["rows"] = [row for row in json.loads(args.output.read_text())["rows"] if row["name"] not in files]
    endless = [sys.executable, "-c", "while True: pass"]
    # Linux shares processors between sessions first, then between processes.
    busy = [subprocess.Popen(endless, start_new_session=True) for _ in range(args.load)]
    try:
        with ThreadPoolExecutor(args.together) as pool:
            for row in pool.map(lambda each: measured(*each, args.load), commands):
                found["rows"].append(row)
                write_json(args.output, found)
    finally:
        for process in busy:
            process.kill()
    print_table(f"at a load of {args.load}", found["rows"], _COLUMNS)
    sys.exit(any(row["code"] for row in found["rows"]))


if __name__ == "__main__":
    main()
