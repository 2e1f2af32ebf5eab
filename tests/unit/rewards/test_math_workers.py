"""Maths workers are killed when they hang, replaced when they die, and leave no process behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import chain, children, descendants, descriptors, stats, wait_until

from openrlhf_shear.rewards import grade_math, jail
from openrlhf_shear.rewards.crew import ClosedError
from openrlhf_shear.rewards.maths import workers as math_workers
from openrlhf_shear.rewards.maths.workers import MathWorkers, WorkerDiedError

TOWER = "9^{9^{9^9}}"  # sympy computes on it in C, where no alarm interrupts it


pytestmark = pytest.mark.usefixtures("needs_jail")


@pytest.fixture(scope="module")
def shared():
    """Workers whose host no test may lose."""
    before = children()
    with MathWorkers(1) as workers:
        assert workers.compare("2x", "x\\cdot 2", 30.0) == (True, None)
        (host,) = children() - before
        yield workers
        assert host in children()


def test_no_grade_touches_the_next_and_one_that_hangs_is_killed(shared):
    inside = descendants()
    assert shared.compare("2x", TOWER, 0.5) == (False, "timeout")
    assert wait_until(lambda: descendants() <= inside)
    for answer in (TOWER, "__import__('os')", "\ud800\x00", "{" * 5000, "(" * 3000, "x" * 50_000):
        assert not shared.compare("2x", answer, 0.3)[0]
        assert shared.compare("2x", "x\\cdot 2", 30.0) == (True, None)
        assert shared.compare("2x", "x", 30.0) == (False, "wrong")


def test_code_in_an_answer_is_not_run_even_without_the_whitelist(shared):
    forgeries = [
        "__import__('os')._exit(0)",
        "__import__('math_verify').grader.sympy_expr_eq.__code__",
        'exec("import __main__; __main__.compare = lambda *a: (True, None)")',
        "1).__class__(1",
        r"\operatorname{__import__}(1)",
        r"\text{__import__('os')}",
    ]
    for forgery in forgeries:
        for gold in ("2x", r"\pi", "(1,2]"):
            correct, reason = shared.compare(gold, forgery, 30.0)
            assert (correct, reason in ("wrong", "unparsable")) == (False, True), (forgery, reason)


def test_reasons(shared):
    assert shared.compare("2x", "))", 30.0) == (False, "unparsable")
    assert shared.compare("((", "2x", 30.0) == (False, "gold_unparsable")
    assert shared.compare(r"\pi", "3.2", 30.0, 0.1) == (True, None)


STAND_IN = """
import os, sys, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import wire
wire.send(1, {"ready": True})
wire.receive(0)
while True:
    job = wire.receive(0)
    if job["answer"] == "hang":
        time.sleep(600)
    equal = job["gold"] == job["answer"]
    wire.send(1, {"correct": equal, "reason": None if equal else "wrong"})
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """The file of a host that starts at once and compares texts, for tests that need no mathematics."""
    tmp_path.chmod(0o755)  # a jail of root's is another user's
    shutil.copy(jail.INSIDE / "wire.py", tmp_path)
    (tmp_path / "host.py").write_text(STAND_IN)
    monkeypatch.setattr(math_workers, "SCRIPT", tmp_path / "host.py")
    monkeypatch.setattr(math_workers, "GRACE_SECONDS", 0.2)
    return tmp_path / "host.py"


def said_of(workers: MathWorkers, *arguments) -> tuple[bool, str | None] | type[Exception]:
    """Return the outcome of a comparison, or the type of its exception."""
    try:
        return workers.compare(*arguments)
    except (WorkerDiedError, ClosedError) as error:
        return type(error)


@pytest.mark.usefixtures("stand_in")
def test_a_dead_or_stopped_host_is_replaced():
    before, others = descendants(), children()
    with MathWorkers(1) as workers:
        workers.compare("a", "a", 30.0)
        (host,) = children() - others
        os.kill(host, signal.SIGKILL)
        assert wait_until(lambda: stats().get(host, "Z")[0] == "Z")
        assert workers.compare("a", "a", 30.0)[0] and host not in children()
        stopped = descendants() - before
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        assert workers.compare("a", "a", 1.0) == (True, None), "once more, by another host"
        assert wait_until(lambda: not descendants() & stopped)


@pytest.mark.usefixtures("stand_in")
def test_threads_share_the_hosts_and_nothing_leaks():
    before, others, held = descendants(), children(), (descriptors(), threading.active_count())
    workers = MathWorkers(2)
    cases = [("a", "a", 30.0), ("a", "b", 30.0), ("b", "b", 30.0), ("a", "hang", 0.1)] * 5
    with ThreadPoolExecutor(4) as pool:
        said = [*pool.map(lambda case: said_of(workers, *case), cases)]
    assert said == [(True, None), (False, "wrong"), (True, None), WorkerDiedError] * 5
    assert len(children() - others) <= 2
    workers.close()
    workers.close()
    assert wait_until(lambda: descendants() <= before)
    assert (descriptors(), threading.active_count()) == held
    with pytest.raises(ClosedError, match="workers are closed"):
        workers.compare("a", "a", 1.0)


@pytest.mark.usefixtures("stand_in")
def test_closing_ends_a_comparison_under_way(monkeypatch):
    before, asked = descendants(), threading.Event()
    workers = MathWorkers(1)
    workers.compare("a", "a", 30.0)
    hear = jail.JailProcess.hear
    monkeypatch.setattr(jail.JailProcess, "hear", lambda *arguments: (asked.set(), hear(*arguments))[1])
    compared = []
    thread = threading.Thread(target=lambda: compared.append(said_of(workers, "a", "hang", 300.0)))
    thread.start()
    assert asked.wait(60.0)
    workers.close()
    thread.join()
    assert compared == [ClosedError]
    assert wait_until(lambda: descendants() <= before)


def ran(code: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run code in a new interpreter."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_without_a_jail_only_the_cheap_match_works(monkeypatch):
    def none(allow_unsandboxed=False):
        raise jail.JailError("no jail for untrusted code works on this machine: none was built")

    monkeypatch.setattr(jail, "find_jail", none)
    with MathWorkers(1) as workers:
        assert grade_math(r"\boxed{0.5}", r"\frac12", workers=workers).correct
        for _ in range(2):  # and the turn is given back
            with pytest.raises(jail.JailError, match="none was built"):
                grade_math(r"\boxed{x\cdot 2}", "2x", workers=workers)
    with pytest.raises(ValueError, match="count must be at least 1: got 0"):
        MathWorkers(0)


def test_a_child_cannot_start_processes_write_files_or_reach_its_host():
    code = """
        import os, resource, sys
        sys.path.insert(0, sys.argv[1])
        import math_worker
        def compare(gold, answer, tolerance, formulas):
            seen = []
            for attempt in (os.fork, lambda: os.posix_spawn(sys.executable, ["python"], {})):
                try:
                    attempt()
                except OSError as error:
                    seen.append(type(error).__name__)
            seen += [os.path.samestat(os.fstat(fd), os.stat(os.devnull)) for fd in (0, 1, 2)]
            seen.append(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
            return False, repr(seen)
        math_worker.compare = compare
        task = {"gold": "", "answer": "", "tolerance": None, "formulas": None, "timeout": 60.0}
        print(math_worker.Host(sys.argv[2]).answer(task)["reason"])
    """
    done = ran(code, str(math_workers.SCRIPT.parent), jail.find_jail().no_fork)
    assert done.stdout.strip() == "['PermissionError', 'PermissionError', True, True, True, 0]", done.stderr


PLACES = {"bubblewrap outside": 0, "bubblewrap inside": 1, "host": 2, "child": 3}


def kill_under_way(workers: MathWorkers, place: str, spared: set[int]) -> int:
    """Kill, of the processes of the comparison under way, the one at a place, if it is none of `spared`."""

    found: set[int] = set()

    def is_found() -> bool:
        chains = [chain(worker.pid) for worker in workers.workers]
        busy_ones = {pids[PLACES[place]] for pids in chains if len(pids) == len(PLACES) and busy(pids[-1])}
        found.update(busy_ones - spared)
        return bool(found)

    assert wait_until(is_found)
    (pid,) = found
    os.kill(pid, signal.SIGKILL)
    return pid


def busy(pid: int) -> bool:
    return stats().get(pid, ["Z"])[0] == "R"


@pytest.mark.parametrize("place", PLACES)
def test_a_process_that_is_killed_from_outside_is_a_failure_and_no_wrong_answer(place):
    with MathWorkers(1) as workers, ThreadPoolExecutor(1) as pool:
        verdict = pool.submit(grade_math, rf"\boxed{{{TOWER}x}}", rf"2^{{{TOWER}}}x", timeout=300.0, workers=workers)
        first = kill_under_way(workers, place, set())
        kill_under_way(workers, place, {first})
        said = verdict.result(60)
        assert (said.reward, said.reason, said.failure) == (None, None, "worker died"), said
        assert "killed from outside" in said.detail or "two hosts in a row" in said.detail


@pytest.mark.parametrize("place", ["host", "child"])
def test_a_process_that_is_killed_once_costs_no_grade(place):
    with MathWorkers(1) as workers, ThreadPoolExecutor(1) as pool:
        said = pool.submit(workers.compare, "2x", TOWER, 5.0)
        kill_under_way(workers, place, set())
        assert said.result(60) == (False, "timeout")
        assert workers.compare("2x", "x\\cdot 2", 30.0) == (True, None)


CHILDREN = """
import json, os, signal, sys, time
sys.path.insert(0, sys.argv[1])
import math_worker
seen = []
def compare(gold, answer, tolerance, formulas):
    seen.append(answer)
    if answer == "raise": raise ValueError
    if answer == "memory" or answer == "memory unless alone" and len(seen) > 1: raise MemoryError
    if answer == "hang": time.sleep(600)
    if answer.startswith("SIG"): os.kill(os.getpid(), signal.Signals[answer])
    if answer == "timer": return False, str(signal.getitimer(signal.ITIMER_PROF)[0] > 60)
    if answer == "grow": seen.append(bytearray(300 << 20))
    return False, str(len(seen))
math_worker.compare = compare
host = math_worker.Host("")
def ask(answer):
    timeout = 0.3 if answer == "hang" else 60.0
    said = host.answer({"gold": "", "answer": answer, "tolerance": None, "formulas": None, "timeout": timeout})
    return said.get("reason", "a fault")
print(json.dumps([ask(answer) for answer in json.loads(sys.argv[2])]))
"""


def test_a_child_serves_many_and_no_answer_pays_for_another():
    cases = (  # answer and outcome: "2" comes from a child that has compared once before
        *(("a", "1"), ("b", "2"), ("c", "3"), ("raise", "unparsable"), ("a", "1"), ("a", "2")),
        *(("memory unless alone", "1"), ("a", "2"), ("memory", "memory"), ("a", "1"), ("SIGSEGV", "crashed")),
        *(("a", "1"), ("SIGPROF", "crashed"), ("a", "1"), ("SIGKILL", "a fault"), ("a", "1"), ("hang", "timeout")),
        *(("a", "1"), ("grow", "3"), ("timer", "True")),
    )
    done = ran(CHILDREN, str(math_workers.SCRIPT.parent), json.dumps([answer for answer, _ in cases]))
    assert json.loads(done.stdout) == [said for _, said in cases], done.stderr
