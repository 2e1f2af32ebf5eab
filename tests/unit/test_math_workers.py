"""Maths workers are killed when they hang, replaced when they die, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from processes import descendants, descriptors, stats, wait_until

from openrlhf_shear.rewards import grade_math, jail
from openrlhf_shear.rewards.crew import ClosedError
from openrlhf_shear.rewards.maths import workers as math_workers
from openrlhf_shear.rewards.maths.workers import MathWorkers

TOWER = "9^{9^{9^9}}"  # sympy computes on it in C, where no alarm interrupts it


pytestmark = pytest.mark.usefixtures("needs_jail")


@pytest.fixture(scope="module")
def shared():
    """Workers whose host no test may lose."""
    with MathWorkers(1) as workers:
        assert workers.compare("2x", "x+x", 30.0) == (True, None)
        hosts = list(workers._idle)
        yield workers
        assert workers._idle == hosts


def test_a_hanging_grade_is_killed_and_the_next_is_unaffected(shared):
    inside = descendants()
    assert shared.compare("2x", TOWER, 0.5) == (False, "timeout")
    assert wait_until(lambda: descendants() <= inside)
    assert shared.compare("2x", "x+x", 30.0) == (True, None)


def test_no_grade_touches_the_next(shared):
    for answer in (TOWER, "__import__('os')", "\ud800\x00", "{" * 5000, "(" * 3000, "x" * 50_000):
        assert not shared.compare("2x", answer, 0.3)[0]
        assert shared.compare("2x", "x+x", 30.0) == (True, None)
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


def test_a_dead_host_is_replaced():
    with MathWorkers(1) as workers:
        workers.compare("2x", "x+x", 30.0)
        (host,) = workers._idle
        host.kill()
        host.wait()
        assert workers.compare("2x", "x+x", 30.0) == (True, None)
        assert workers._idle != [host]


def test_a_stopped_host_is_killed_from_outside(monkeypatch):
    monkeypatch.setattr(math_workers, "_GRACE_SECONDS", 0.2)
    before = descendants()
    with MathWorkers(1) as workers:
        workers.compare("2x", "x+x", 30.0)
        for pid in descendants() - before:
            os.kill(pid, signal.SIGSTOP)
        assert workers.compare("2x", "x+x", 0.3) == (False, "timeout")
        assert workers._idle == []
        assert wait_until(lambda: descendants() <= before)


def test_threads_share_the_hosts_and_nothing_leaks(shared):
    before, held = descendants(), (descriptors(), threading.active_count())
    workers = MathWorkers(2)
    wrong = []

    def grade(seed):
        for k in range(3):
            n = 10 * seed + k + 2
            right = workers.compare(f"{n}x", f"{n - 1}x+x", 30.0)
            other = workers.compare(f"{n}x", TOWER, 0.3) if seed == k else workers.compare(f"{n}x", f"{n + 1}x", 30.0)
            if right != (True, None) or other[0]:
                wrong.append((n, right, other))

    threads = [threading.Thread(target=grade, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 1 <= len(workers._idle) <= 2
    workers.close()
    workers.close()
    assert wait_until(lambda: descendants() <= before)
    assert (descriptors(), threading.active_count()) == held
    with pytest.raises(ClosedError, match="workers are closed"):
        workers.compare("2x", "x+x", 1.0)


def test_closing_ends_a_comparison_under_way():
    before = descendants()
    workers = MathWorkers(1)
    workers.compare("2x", "x+x", 30.0)
    compared = []
    thread = threading.Thread(target=lambda: compared.append(workers.compare("2x", TOWER, 300.0)))
    thread.start()
    assert wait_until(lambda: not workers._idle)
    workers.close()
    thread.join()
    assert compared == [(False, "worker_died")]
    assert wait_until(lambda: descendants() <= before)


def test_a_host_dies_with_its_process():
    code = (
        "import os, signal\n"
        "from openrlhf_shear.rewards.maths.workers import MathWorkers\n"
        "workers = MathWorkers(1)\n"
        "assert workers.compare('2x', 'x+x', 30.0)[0]\n"
        "print(workers._idle[0].pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert wait_until(lambda: stats().get(int(done.stdout), ["Z"])[0] == "Z")


def test_default_workers_are_lazy_and_made_anew_in_a_fork():
    code = (
        "import json, os\n"
        "from openrlhf_shear.rewards.maths import workers as math_workers\n"
        "from openrlhf_shear.rewards.maths import grade_math\n"
        "grade_math(r'\\boxed{1}', '1')\n"
        "lazy = not any(workers._all for workers in math_workers._default.values())\n"
        "parent = grade_math(r'\\boxed{x+x}', '2x', timeout=30).correct\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    fresh = not any(workers._all for workers in math_workers._default.values())\n"
        "    graded = grade_math(r'\\boxed{x+x}', '2x', timeout=30).correct\n"
        "    math_workers.close_default_workers()\n"
        "    os._exit(0 if fresh and graded else 1)\n"
        "status = os.waitpid(child, 0)[1]\n"
        "again = grade_math(r'\\boxed{x+x}', '2x', timeout=30).correct\n"
        "print(json.dumps([lazy, parent, status == 0, again]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert json.loads(done.stdout) == [True] * 4, done.stderr


def test_without_a_jail_only_the_cheap_match_works(monkeypatch):
    def none(allow_unsandboxed=False):
        raise jail.JailError("no jail for untrusted code works on this machine: none was built")

    monkeypatch.setattr(jail, "find_jail", none)
    with MathWorkers(1) as workers:
        assert grade_math(r"\boxed{0.5}", r"\frac12", workers=workers).correct
        for _ in range(2):  # and the turn is given back
            with pytest.raises(jail.JailError, match="none was built"):
                grade_math(r"\boxed{x+x}", "2x", workers=workers)


def test_count_must_be_positive():
    with pytest.raises(ValueError, match="count must be at least 1: got 0"):
        MathWorkers(0)


def test_a_child_cannot_start_processes_write_files_or_reach_its_host():
    code = (
        "import os, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import math_worker\n"
        "reading, writing = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    math_worker._confine(sys.argv[2], 5.0)\n"
        "    seen = []\n"
        "    for attempt in (os.fork, lambda: os.posix_spawn(sys.executable, ['python'], {})):\n"
        "        try:\n"
        "            attempt()\n"
        "        except OSError as error:\n"
        "            seen.append(type(error).__name__)\n"
        "    seen += [os.path.samestat(os.fstat(fd), os.stat(os.devnull)) for fd in (0, 1, 2)]\n"
        "    seen.append(math_worker.resource.getrlimit(math_worker.resource.RLIMIT_FSIZE)[1])\n"
        "    os.write(writing, repr(seen).encode())\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print(os.read(reading, 1000).decode())"
    )
    command = [sys.executable, "-c", code, str(jail.INSIDE), jail.find_jail().no_fork]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "['PermissionError', 'PermissionError', True, True, True, 0]", done.stderr
