"""Hostile programs, beside honest programs and before them: none may be lost, late or graded wrong.

    python hostile_neighbours.py --output hostile_neighbours.json
    python hostile_neighbours.py --order before --output hostile_neighbours.json    # two minutes

Order "beside": each row grades one kind of hostile program again and again, in jails that it shares with 50 honest
grades of several kinds. The first row has no hostile program. "lost" counts rollouts that failed: there is no verdict
on the program.

Order "before": each row of `warm_attacks.py` is graded in a warm jail, and then an honest program. It also counts the
escapes of `shear-check-rewards`, and measures programs a second. --output keeps the other order's rows.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

import warm_jails
from measure import environment, print_table, script_parser, write_json
from tqdm import tqdm
from warm_attacks import ATTACKS

from openrlhf_shear.rewards import Verdict, grade_code
from openrlhf_shear.rewards.code.workers import CodeWorkers
from openrlhf_shear.rewards.jail import find_jail
from openrlhf_shear.rewards.jail.escapes import try_escapes
from openrlhf_shear.rewards.verdict import Reason

_ECHO = {"inputs": ["3\n", "4\n"], "outputs": ["6\n", "8\n"]}
_DOUBLES = "def double(x):\n    return 2 * x"
_THREADED = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(16) as pool:
    print(sum(pool.map(int, [input()] * 2)))
"""
_RECURSIVE = """
import sys, threading
threading.stack_size(64 << 20)
sys.setrecursionlimit(100_000)
def down(n): return 0 if n == 0 else 2 + down(n - 1)
thread = threading.Thread(target=lambda: print(down(int(input()))))
thread.start()
thread.join()
"""
# kind -> (program, label)
HONEST = {
    "stdin": ("print(2 * int(input()))", _ECHO),
    "modules": ("import ast, json, fractions, statistics\nprint(json.dumps(2 * ast.literal_eval(input())))", _ECHO),
    "a function": (_DOUBLES, {"inputs": [[3]], "outputs": [6], "fn_name": "double"}),
    "asserts": (_DOUBLES, {"test_list": ["assert double(3) == 6", "assert double([1]) == [1, 1]"]}),
    "threads": (_THREADED, _ECHO),
    "a large stack": (_RECURSIVE, _ECHO),
    "a file": ("open('/tmp/x', 'w').write(input())\nprint(2 * int(open('/tmp/x').read()))", _ECHO),
    "asyncio": ("import asyncio\nasync def main(): print(2 * int(input()))\nasyncio.run(main())", _ECHO),
}
_BEGIN = """
import ctypes, fcntl, glob, hashlib, itertools, mmap, os, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
numbers = itertools.count()
end = time.monotonic() + SECONDS
def each(what, count=1 << 62):
    for _ in range(count):
        if time.monotonic() > end:
            break
        try:
            what()
        except (OSError, RuntimeError, ValueError, MemoryError):
            pass
libraries = [os.open(path, 0) for path in glob.glob(os.path.dirname(os.__file__) + '/*.py')[:90]]
def wait():
    time.sleep(max(0, end - time.monotonic()))
    os._exit(1)
"""
HOSTILE = {
    "threads by clone": """
stack = mmap.mmap(-1, 1 << 28)
top = ctypes.addressof(ctypes.c_char.from_buffer(stack))
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
each(lambda: libc.clone(pause, ctypes.c_void_p(top + 4096 * (next(numbers) % 60000 + 2)), 0x50F00, None))
""",
    "threads that compute": """
threading.stack_size(64 << 10)
work = lambda: hashlib.pbkdf2_hmac('sha256', b'x', b'y', 1 << 40 >> 10)
each(lambda: threading.Thread(target=work).start(), 1000)
wait()
""",
    "leases": "each(lambda: [fcntl.fcntl(fd, 1024, kind) for fd in libraries for kind in (0, 1)])",
    "locks": "each(lambda: [(fcntl.flock(fd, fcntl.LOCK_EX), fcntl.lockf(fd, fcntl.LOCK_SH)) for fd in libraries])",
    "record locks": "each(lambda: fcntl.lockf(libraries[0], fcntl.LOCK_SH, 1, 2 * next(numbers)))",
    "watches": "each(lambda: libc.inotify_init() < 0 and libc.inotify_init1(0), 10000)\nwait()",
    "notes of folders": "each(lambda: fcntl.fcntl(os.open('/usr/lib', 0), 1026, 0x8000003F))",
    "files": "each(lambda: os.mknod(f'/tmp/{next(numbers)}'))",
    "folders": "each(lambda: os.mkdir(f'/tmp/{next(numbers)}'))",
    "links": "open('/tmp/x', 'w')\neach(lambda: os.link('/tmp/x', f'/tmp/{next(numbers)}'))",
    "a full disk": "each(lambda: open('/tmp/x', 'ab').write(bytes(1 << 20)))",
    "memory": "kept = []\neach(lambda: kept.append(bytearray(1 << 20)))",
    "large pipes": "kept = []\neach(lambda: kept.append(os.pipe()) or fcntl.fcntl(kept[-1][1], 1031, 1 << 20))",
    "descriptors under way": """
one, other = socket.socketpair()
each(lambda: socket.send_fds(one, [b'x'], [0] * 200))
""",
    "signals that wait": """
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
words = (ctypes.c_uint * 32)(40, 0, 0xFFFFFFFF)
each(lambda: libc.syscall(129, os.getpid(), 40, ctypes.byref(words)))
""",
    "timers": "each(lambda: libc.timer_create(1, 0, ctypes.byref(ctypes.c_long())))",
    "asynchronous reads": "each(lambda: libc.syscall(206, 1 << 14, ctypes.byref(ctypes.c_long())))",
    "the disk": "each(lambda: (os.sync(), [os.fsync(fd) for fd in libraries]))",
    "the page cache": "each(lambda: [os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED) for fd in libraries])",
    "page faults": "each(lambda: mmap.mmap(-1, 64 << 20).write(bytes(64 << 20)))",
    "all processors at once": "each(lambda: libc.syscall(324, 1, 0, 0))",
    "a whole core": "each(lambda: libc.prctl(62, 1, 0, 0, 0))",
    "attributes": "each(lambda: [os.setxattr(fd, 'user.x', b'x') or os.chmod(fd, 0) for fd in (*libraries, 1)])",
    "forks": "each(lambda: os.fork())",
    "output": "each(lambda: os.write(1, bytes(1 << 20)))",
    "work": "while time.monotonic() < end: pass",
}


def main() -> None:
    args = _arguments()
    if args.markdown:
        print("\n".join(markdown(json.loads(args.markdown.read_text())["before"])))
        return
    results = json.loads(args.output.read_text()) if args.output and args.output.exists() else {}
    held = all([_DO[order](args, results) for order in args.order])
    write_json(args.output, results)
    sys.exit(0 if held else 1)


def beside(args: argparse.Namespace, results: dict) -> bool:
    """Add the rows of honest programs beside hostile programs to the results; return whether all are right."""
    results |= {"environment": environment(), "jail": find_jail().mechanisms, "processes": args.processes}
    results["rows"] = [
        row_of(kind, args.honest, args.processes, args.timeout, args.seconds) for kind in (None, *args.kinds)
    ]
    columns = {"hostile": "hostile program", "verdict": "its verdict", "its grades": "its grades"}
    columns |= {name: name for name in ("honest", "right", "timeout", "lost")}
    print_table(
        "honest grades beside a hostile program",
        results["rows"],
        columns | {"median": "median [s]", "worst": "worst [s]"},
    )
    return all(row["right"] == row["honest"] for row in results["rows"])


def before(args: argparse.Namespace, results: dict) -> bool:
    """Add the rows of honest programs after attacks on their jail to the results; return whether all are right."""
    found = results["before"] = {"environment": environment(), "jail": find_jail().mechanisms}
    found["rows"] = list(tqdm(warm_jails.attacked(ATTACKS), total=len(ATTACKS), leave=False))
    escapes = [outcome for _, _, outcome in try_escapes(find_jail())]
    found["escapes"] = {"tried": len(escapes), "blocked": sum(outcome.startswith("refused") for outcome in escapes)}
    found["programs a second"] = warm_jails.speed(args.honest)
    columns = {name: name for name in ("attack", "goal", "verdict", "next", "jail", "held")}
    print_table("an honest grade after an attack on its jail", found["rows"], columns)
    print(f"escapes: {found['escapes']}; programs a second: {found['programs a second']}")
    return all(row["held"] for row in found["rows"]) and len(escapes) == found["escapes"]["blocked"]


_DO = {"beside": beside, "before": before}


def markdown(found: dict) -> Iterator[str]:
    """Yield the tables of `before` as docs/security.md has them: a row for each goal, and the measured rates."""
    goals = {row["goal"]: [other for other in found["rows"] if other["goal"] == row["goal"]] for row in found["rows"]}
    yield from ("| goal | attacks | held | then a new jail |", "| --- " * 4 + "|")
    for goal, rows in goals.items():
        yield f"| {goal} | {len(rows)} | {sum(r['held'] for r in rows)} | {sum(r['jail'] == 'new' for r in rows)} |"
    rate, escapes = found["programs a second"], found["escapes"]
    yield from ("", "| measured | |", "| --- | --- |")
    yield f"| escapes blocked, of those tried | {escapes['blocked']} of {escapes['tried']} |"
    yield f"| programs a second, in a warm jail | {rate['warm']:.1f} |"
    yield f"| programs a second, with a new jail for each | {rate['fresh']:.1f} |"


def row_of(kind: str | None, honest: int, processes: int, timeout: float, seconds: float) -> dict:
    """Grade honest programs in `processes` threads; one more thread grades a hostile program that takes `seconds`."""
    hostile = _BEGIN.replace("SECONDS", str(seconds)) + HOSTILE.get(kind, "")
    over, verdicts = threading.Event(), Counter()
    jobs = [*islice(cycle(HONEST.values()), honest)]
    with CodeWorkers(processes + 1) as workers, ThreadPoolExecutor(processes + 1) as pool:

        def graded(job: tuple[str, dict]) -> Verdict:
            return grade_code(job[0], job[1], extract=False, timeout=timeout, workers=workers)

        def attack() -> None:
            while kind and not over.is_set():
                said = graded((hostile, _ECHO))
                verdicts[said.why or "passed"] += 1

        list(pool.map(graded, jobs[: len(HONEST)]))  # starts the jails
        attacking = pool.submit(attack)
        time.sleep(0.5 if kind else 0.0)  # until the attack has begun
        said = list(pool.map(graded, jobs))
        over.set()
        attacking.result()
    times = [verdict.seconds for verdict in said]
    return {
        "hostile": kind or "none",
        "verdict": ", ".join(verdicts),
        "its grades": sum(verdicts.values()),
        "honest": honest,
        "right": sum(verdict.correct is True for verdict in said),
        "timeout": sum(verdict.reason == Reason.TIMEOUT for verdict in said),
        "lost": sum(verdict.failure is not None for verdict in said),
        "median": statistics.median(times),
        "worst": max(times),
        "not right": [str(verdict) for verdict in said if not verdict.correct],
    }


def _arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--order", nargs="+", choices=_DO, default=[*_DO], help="hostile programs (default: both)")
    parser.add_argument("--markdown", type=Path, metavar="FILE.json", help="print an --output file as docs/ has it")
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=HOSTILE,
        metavar="KIND",
        default=[*HOSTILE],
        help="kinds of hostile programs (default: all)",
    )
    parser.add_argument("--honest", type=int, default=50, help="grades beside each of them (default 50)")
    parser.add_argument("--processes", type=int, default=2, help="concurrent honest grades (default 2)")
    parser.add_argument("--timeout", type=float, default=10.0, help="of a test [s], as --reward.timeout (default 10)")
    parser.add_argument("--seconds", type=float, default=8.0, help="duration of a hostile program (default 8)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
