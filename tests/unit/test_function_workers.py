"""Workers of a reward file: a reward lands on its own rollout or on none, whatever the file does to its process."""

import os
import signal

import pytest

from openrlhf_shear.rewards.breaker import Breaker
from openrlhf_shear.rewards.function_workers import FunctionWorkers

FORKS = """
import multiprocessing, os, threading, time

def reward_func(queries, prompts, labels):
    (how,), (label,), asked = queries, labels, os.getpid()
    if how == "fork":
        os.fork()
    if how == "fork and be late" and not os.fork():
        time.sleep(0.3)
    if how == "fork twice":
        os.fork(), os.fork()
    if how == "fork and raise" and not os.fork():
        raise ValueError("from the copy")
    if how == "fork and exit" and not os.fork():
        raise SystemExit(0)
    if how == "fork in a thread":
        thread = threading.Thread(target=os.fork)
        thread.start()
        thread.join()
    if how == "fork by multiprocessing":
        multiprocessing.get_context("fork").Process(target=reward_func, args=([""], [""], [-1])).start()
    return {"rewards": float(label if os.getpid() == asked else -1)}
"""
HOWS = ("fork", "fork and be late", "fork twice", "fork and raise", "fork and exit", "fork in a thread")
HOWS += ("fork by multiprocessing",)

WRITES = """
import json, os, stat, struct, threading, time

(PIPE,) = (
    int(name)
    for name in os.listdir("/proc/self/fd")
    if os.path.exists(f"/proc/self/fd/{name}") and stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode)
)

def frame(number):
    body = json.dumps([number, {"rewards": -1.0}]).encode()
    return struct.pack(">I", len(body)) + body

def reward_func(queries, prompts, labels):
    (how,), (_,), (label,) = queries, prompts, labels
    if how == "noise":
        os.write(PIPE, b"noise")
    if how == "a length and no more":
        os.write(PIPE, struct.pack(">I", 100))
    if how == "another's answer":
        os.write(PIPE, frame(99))
    if how == "late":
        threading.Timer(0.1, os.write, (PIPE, frame(99))).start()
    if how == "twice":
        os.write(PIPE, frame(99) * 2)
    if how == "too long":
        return {"rewards": 1.0, "extra_logs": {"x" * (2 << 20): 1.0}}
    if how == "close":
        os.close(PIPE)
    return {"rewards": float(label)}
"""
SPOILT = ("noise", "a length and no more", "another's answer", "twice", "too long", "close")


def workers(tmp_path, source: str, seconds: float = 60.0) -> FunctionWorkers:
    (tmp_path / "reward.py").write_text(source)
    return FunctionWorkers(str(tmp_path / "reward.py"), seconds, 1, Breaker(1000))


def test_copies_that_a_file_forks_of_its_process_answer_nothing(tmp_path):
    with workers(tmp_path, FORKS) as asked:
        verdicts = [asked.grade(how, "", str(n)) for n, how in enumerate(("", *HOWS) * 4)]
    assert [verdict.reward for verdict in verdicts] == [*range(len(verdicts))], verdicts


def test_nor_do_copies_that_it_forks_while_it_is_imported(tmp_path):
    with workers(tmp_path, "import os\nos.fork()\n" + FORKS) as asked:
        assert [asked.grade("", "", str(n)).reward for n in range(20)] == [*range(20)]


def test_what_a_file_writes_into_the_pipe_is_nobodys_reward(tmp_path):
    with workers(tmp_path, WRITES, 1.0) as asked:
        for n, how in enumerate(SPOILT, 1):
            spoilt, next_one = asked.grade(how, "", str(n)), asked.grade("", "", str(-n))
            assert spoilt.reward is None and spoilt.failure in ("answered out of turn", "timeout", "worker died"), how
            assert next_one.reward == -n, how
        assert [asked.grade("late", "", str(n)).reward for n in range(3)] == [0, 1, 2]
        for n in range(200):  # the late answers come in between, or before any of them
            verdict = asked.grade("", "", str(n))
            assert verdict.reward == n or verdict.failure == "answered out of turn", (n, verdict)


@pytest.mark.parametrize(
    ("how", "told"),
    {
        "sys.exit(3)": "exit status 3",
        "sys.exit()": "exit status 0",
        "os._exit(7)": "exit status 7",
        "os.abort()": "killed by SIGABRT",
        "os.kill(os.getpid(), 9)": "killed by SIGKILL",
        "threading.Thread(target=time.sleep, args=(0.5,)).start() or sys.exit(4)": "exit status 4",
    }.items(),
)
def test_the_end_of_a_process_is_told_as_it_was(tmp_path, how, told):
    with workers(
        tmp_path, f"import os, sys, threading, time\ndef reward_func(queries, prompts, labels): {how}"
    ) as asked:
        verdict = asked.grade("", "", "")
    assert (verdict.failure, verdict.detail) == ("worker died", told)


def test_a_file_that_exits_while_it_is_imported_says_so_too(tmp_path):
    with workers(tmp_path, "import sys\nsys.exit(5)") as asked:
        assert asked.grade("", "", "").detail == "exit status 5"
        with pytest.raises(RuntimeError, match=r"while it was imported: exit status 5; look for sys\.exit"):
            asked.check()


def test_an_idle_worker_that_speaks_is_replaced(tmp_path):
    with workers(tmp_path, WRITES) as asked:
        assert asked.grade("late", "", "1").reward == 1
        (worker,) = asked._idle
        assert worker.pipe.poll(60.0)
        assert asked.grade("", "", "2").reward == 2
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, signal.SIG_DFL)
