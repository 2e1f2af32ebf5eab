"""Warm jails: a program killed from outside is no wrong answer, one that ends itself is; grades leave no traces."""

import os
import signal
import stat
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import table
from processes import chain, descendants, descriptors, stats, wait_until

from openrlhf_shear.rewards import Verdict, grade_code
from openrlhf_shear.rewards.code.hosts import CodeWorkers, DiedError, Grade, raise_if_killed
from openrlhf_shear.rewards.crew import ClosedError
from openrlhf_shear.rewards.jail import find_jail

pytestmark = pytest.mark.usefixtures("needs_jail")

SECRET = "a-result-of-another-response-90417"
ECHO = {"inputs": ["3\n"], "outputs": ["3"]}
CALLS = {"test_list": ["assert f(3) == 3"]}
# kind of tests: (a program that says 3 after `SECONDS`, its tests, the side with the process to be killed)
WAITS = table("rewards", "WAITS")
CHAIN = ("bubblewrap", "its first process", "the host", "the grade", "the test")  # each the parent of the next


@pytest.fixture
def workers():
    with CodeWorkers(1) as workers:
        yield workers


def grade(code: str, tests: dict, workers: CodeWorkers, **options) -> Verdict:
    return grade_code(code, tests, workers=workers, **{"timeout": 60.0, "extract": False, **options})


def jail_of(workers: CodeWorkers, side: str) -> list[int]:
    """The processes of the only jail of a side, each the parent of the next."""
    hosts = workers.hosts(side, False).workers
    return chain(hosts[0].process.pid) if hosts else []


def killing(
    workers: CodeWorkers, side: str, place: int, length: int, times: int, ready: Callable[[int], bool] = lambda _: True
) -> tuple[threading.Thread, list[int]]:
    """Kill the process at a place once the chain is long enough, `times` times; return the thread and the pids."""
    killed: list[int] = []

    def watch() -> None:
        while len(killed) < times:
            assert wait_until(lambda: len(jail_of(workers, side)) >= length and ready(len(killed)))
            pids = jail_of(workers, side)
            if len(pids) >= length and pids[place] not in killed:
                os.kill(pids[place], signal.SIGKILL)
                killed.append(pids[place])
                wait_until(lambda: killed[-1] not in jail_of(workers, side))

    thread = threading.Thread(target=watch)
    thread.start()
    return thread, killed


@pytest.mark.parametrize(
    ("kind", "place"), [(kind, place) for kind in WAITS for place in CHAIN[: 5 if kind in ("stdin", "function") else 4]]
)
def test_what_is_killed_from_outside_fails_its_rollout(kind: str, place: str, workers: CodeWorkers):
    program, tests, side = WAITS[kind]
    length = 5 if kind in ("stdin", "function") else 4
    thread, killed = killing(workers, side, CHAIN.index(place), length, times=2)
    verdict = grade(program.replace("SECONDS", "600"), tests, workers)
    thread.join()
    assert len(killed) == 2, "once more, in a fresh jail"
    assert (verdict.correct, verdict.reward, verdict.failure) == (None, None, "jail died")
    assert verdict.detail
    assert grade(program.replace("SECONDS", "0"), tests, workers).correct


@pytest.mark.parametrize("kind", WAITS)
def test_a_grade_that_is_killed_once_is_made_again(kind: str, workers: CodeWorkers, monkeypatch):
    program, tests, side = WAITS[kind]
    killed, tell = [], Grade.tell

    def kill_and_tell(*given: object) -> None:
        if not killed:
            assert wait_until(lambda: len(jail_of(workers, side)) == len(CHAIN[:4]))
            killed.append(jail_of(workers, side)[3])
            os.kill(killed[0], signal.SIGKILL)
        tell(*given)

    monkeypatch.setattr(Grade, "tell", kill_and_tell)
    assert grade(program.replace("SECONDS", "0"), tests, workers).correct
    assert killed


ENDS = table("rewards", "ENDS")


@pytest.mark.parametrize("kind", WAITS)
def test_a_program_that_ends_itself_is_a_wrong_answer(kind: str, workers: CodeWorkers):
    for name, ends in ENDS.items():
        program = ends if kind == "stdin" else f"def f(x):\n{textwrap.indent(ends, '    ')}\n    return 0"
        verdict = grade(program, WAITS[kind][1], workers, memory_mb=256, timeout=20.0)
        assert verdict.correct is False and verdict.failure is None, (name, verdict)
        assert verdict.outcomes[0] in ("error", "memory", "wrong_answer"), (name, verdict)


def test_processor_time_that_is_used_up_is_a_timeout(workers: CodeWorkers):
    """By several threads, before the clock; the kernel sends SIGKILL."""
    burns = "import hashlib, threading\ndef burn():\n    while True: hashlib.sha512(bytes(1 << 20)).digest()\n"
    burns += "for _ in range(8): threading.Thread(target=burn).start()\n"
    for kind in ("stdin", "response to asserts"):
        verdict = grade(burns + WAITS[kind][0].replace("SECONDS", "60"), WAITS[kind][1], workers, timeout=1.0)
        assert verdict.failure is None and verdict.reason in ("timeout", "error"), verdict


def test_who_sent_sigkill_follows_from_the_processor_time():
    """The kernel at the end of that time, and a jail to a program with too many files; else something outside."""
    killed = {"code": -signal.SIGKILL, "cpu": 0.5}
    with pytest.raises(DiedError, match="a program was killed from outside"):
        raise_if_killed(killed, 1.0, "a program")
    for other in ({"cpu": 1.0}, {"overfull": True}, {"code": -signal.SIGTERM}, {"code": 1}):
        raise_if_killed(killed | other, 1.0, "a program")


def test_tests_that_end_their_own_process_are_no_failure(workers: CodeWorkers):
    for ends in ("import os\nos._exit(0)", "import sys\nsys.exit()"):
        verdict = grade("def f(x): return 3", {"test_list": [f"f(3)\n{ends}", "assert f(3) == 3"]}, workers)
        assert (verdict.reason, verdict.failure) == ("error", None), verdict


# --- hostile programs and their neighbours ---

CLONES = """
import ctypes, mmap
libc = ctypes.CDLL(None)
stack = mmap.mmap(-1, 1 << 22)
top = ctypes.addressof(ctypes.c_char.from_buffer(stack))
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
started = [libc.clone(pause, ctypes.c_void_p(top + 4096 * k), 0x50F00, None) > 0 for k in range(2, 1000)]
"""
MANY_FILES = "import os\nfor n in range(10**9): os.mknod(f'/tmp/{n}')"


def test_a_program_has_some_threads_and_not_many(workers: CodeWorkers):
    if not find_jail().threads:
        pytest.skip("no limit on threads here")
    some = f"{CLONES}\nprint(3 if 30 < sum(started) < 80 else sum(started), flush=True)\nimport os\nos._exit(0)"
    assert grade(some, ECHO, workers).correct
    called = f"{CLONES}\ndef f(x): return sum(started)"
    assert grade(called, {"test_list": ["assert 30 < f(3) < 80"]}, workers).correct
    pool = "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(32) as pool:\n"
    pool += "    print(sum(pool.map(int, [input(), *'0' * 99])))"
    assert grade(pool, ECHO, workers).correct
    tasks = "import asyncio\nasync def main():\n    read = asyncio.to_thread(input)\n"
    tasks += "    return await asyncio.gather(read, asyncio.sleep(0.01))\nprint(asyncio.run(main())[0])"
    assert grade(tasks, ECHO, workers).correct


def test_a_program_gets_no_more_memory_of_the_kernel_by_larger_buffers_or_more_tables_of_descriptors(workers):
    buffers = "import socket\nsocket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)"
    assert grade(buffers, ECHO, workers).detail.startswith("PermissionError")
    tables = CLONES.replace("0x50F00", "0x50B00")  # without CLONE_FILES
    assert grade(f"{tables}\nprint(3 + sum(started), flush=True)\nimport os\nos._exit(0)", ECHO, workers).correct


@pytest.mark.parametrize("kind", WAITS)
def test_a_program_that_makes_files_without_end_is_ended(kind: str, workers: CodeWorkers):
    program = MANY_FILES if kind == "stdin" else f"def f(x):\n{textwrap.indent(MANY_FILES, '    ')}"
    verdict = grade(program, WAITS[kind][1], workers)
    assert (verdict.reason, verdict.failure, verdict.detail) == (
        "error",
        None,
        "test 0: the program made too many files",
    )
    few = "import os\nfor n in range(1000): os.mknod(f'/tmp/{n}')\nprint(input())"
    assert grade(few, ECHO, workers).correct


@pytest.mark.parametrize("kind", ["threads by clone", "leases", "signals that wait", "large pipes"])
def test_honest_programs_pass_beside_a_hostile_one(kind: str, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    from hostile_neighbours import row_of

    row = row_of(kind, honest=8, processes=1, timeout=60.0, seconds=1.0)
    assert (row["right"], row["lost"], row["timeout"], row["not right"]) == (8, 0, 0, [])
    assert row["its grades"]


# --- one grade after the other in a jail ---


def test_a_clean_jail_is_used_again_and_another_one_is_not(workers: CodeWorkers):
    hosts = workers.hosts("responses", False)

    def host_after(program: str, timeout: float = 60.0) -> int:
        grade(program, ECHO, workers, timeout=timeout)
        pids = [host.process.pid for host in hosts.workers if host.poll() is None]
        return pids[0] if pids else 0

    first = host_after("print(3)")
    for clean in ("import os\nos._exit(1)", "while True: pass", "import time\ntime.sleep(60)", "raise ValueError"):
        assert host_after(clean, timeout=1.0) == first
    for unclean in table("rewards", "test_a_clean_jail_is_used_again_and_another_one_is_not"):
        before = host_after("print(3)")
        assert before and host_after(unclean) != before, unclean
    assert grade("import os\nassert os.listdir('/tmp') == []\nprint(3)", ECHO, workers).correct


def test_a_program_ends_with_its_watcher_even_without_a_jail(no_bubblewrap, tmp_path: Path):
    note = tmp_path / "pids"
    program = f"import os, time\nos.setsid()\nprint(os.getpid(), file=open({str(note)!r}, 'a'))\ntime.sleep(600)"
    with CodeWorkers(1, allow_unsandboxed=True) as workers:
        for place in (1, 0):  # the grade, the host: the first of the chain here
            note.write_text("")
            thread, _ = killing(
                workers, "responses", place, 3, times=2, ready=lambda count: len(note.read_text().split()) > count
            )
            assert grade(program, ECHO, workers, allow_unsandboxed=True).failure == "jail died"
            thread.join()
            assert len(pids := [int(pid) for pid in note.read_text().split()]) == 2
            assert wait_until(lambda: not {*pids} & stats().keys())


def test_a_test_finds_nothing_of_the_one_before(workers: CodeWorkers):
    twice = {"inputs": ["", ""], "outputs": ["new", "new"]}
    program = "import json\nprint('old' if hasattr(json, 'x') else 'new')\njson.x = 1"
    assert grade(program, twice, workers).correct
    assert grade(program, twice, workers).correct


def test_no_word_of_a_grade_stays_in_the_memory_of_the_host(workers: CodeWorkers):
    """The next grade is forked from the host, which must keep no program, input or output."""
    words = {name: f"{name}-{SECRET}" for name in ("program", "input", "output", "value")}
    stdin = {"inputs": [words["input"]], "outputs": ["no"]}
    grade(f"print('tuptuo'[::-1] + {SECRET!r})  # {words['program']}", stdin, workers)
    grade(
        f"def f(x): return {words['value']!r}", {"fn_name": "f", "inputs": [[words["input"]]], "outputs": [1]}, workers
    )
    grade(f"def f(x): return {words['value']!r}", CALLS, workers)
    for side in ("responses", "tests"):
        host = jail_of(workers, side)[2]
        try:
            memory = readable_memory(host)
        except OSError as error:
            pytest.skip(f"another process's memory cannot be read here: {error}")
        assert b"Waits inside a jail" in memory, "it is the host's"
        assert SECRET.encode() not in memory


def readable_memory(pid: int) -> bytes:
    parts = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            if rights.startswith("rw"):
                begin, end = (int(part, 16) for part in place.split("-"))
                memory.seek(begin)
                parts.append(memory.read(end - begin))
    return b"".join(parts)


def test_a_jail_that_dies_while_it_waits_costs_nothing(workers: CodeWorkers):
    for place in range(3):
        assert grade("print(input())", ECHO, workers).correct
        os.kill(jail_of(workers, "responses")[place], signal.SIGKILL)
        assert grade("print(input())", ECHO, workers).correct


def test_a_jail_is_replaced_after_its_number_of_grades():
    with CodeWorkers(1, most=2) as workers:
        pids = []
        for _ in range(4):
            assert grade("print(input())", ECHO, workers).correct
            pids += [host.process.pid for host in workers.hosts("responses", False).workers if host.poll() is None] or [
                0
            ]
        assert [bool(pid) for pid in pids] == [True, False, True, False] and pids[0] != pids[2]


def test_packages_are_there_only_for_code_that_imports_them(workers: CodeWorkers):
    looks = "import sys\nprint(any('site-packages' in path for path in sys.path))"
    assert grade(looks, {"inputs": [""], "outputs": ["False"]}, workers).correct
    assert grade(f"import numpy\n{looks}", {"inputs": [""], "outputs": ["True"]}, workers).correct
    assert not workers.hosts("tests", True).workers


def test_nothing_stays_after_close(workers: CodeWorkers):
    before = descendants(), descriptors()
    with CodeWorkers(2) as mine:
        for program, tests, _ in WAITS.values():
            assert grade(program.replace("SECONDS", "0"), tests, mine).correct
        assert descendants() > before[0]
        thread = threading.Thread(target=lambda: said.append(ended(mine)))
        said: list[object] = []
        thread.start()
        assert wait_until(lambda: len(jail_of(mine, "tests")) >= 4)
    thread.join()
    assert said == ["ended"]
    assert wait_until(lambda: (descendants(), descriptors()) == before)
    with pytest.raises(ClosedError):
        grade("print(input())", ECHO, mine)


def ended(workers: CodeWorkers) -> str:
    try:
        verdict = grade(WAITS["asserts"][0].replace("SECONDS", "600"), CALLS, workers)
        return "ended" if verdict.failure == "jail died" else str(verdict)
    except ClosedError:
        return "ended"


def test_a_response_to_asserts_keeps_the_pipes_to_the_judge_alone(workers: CodeWorkers):
    """Not the socket from which its jail takes the next grade's."""
    looks = "import os, stat\ndef f():\n    found = []\n    for fd in range(1000):\n"
    looks += (
        "        try: found.append(stat.S_IFMT(os.fstat(fd).st_mode))\n        except OSError: pass\n    return found"
    )
    kinds = f"[{stat.S_IFCHR}] * 3 + [{stat.S_IFIFO}] * 2"
    assert grade(looks, {"test_list": [f"assert f() == {kinds}"]}, workers).correct
