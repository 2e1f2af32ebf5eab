"""Workers of a reward file: a reward reaches its own rollout or none, whatever the file does to its process."""

import os
import signal

import pytest
from cases import table

from openrlhf_shear.rewards import function_workers
from openrlhf_shear.rewards.breaker import Breaker
from openrlhf_shear.rewards.files import FILES, here
from openrlhf_shear.rewards.function_workers import FunctionWorkers

REWARD_FILE = table("rewards", "REWARD_FILE")
FORKS = table("rewards", "FORKS")
LATE = "threading.Timer(0.1, os.write, (PIPE, frame(99))).start()"
LARGE = "#" + "x" * (8 << 20)  # more than the socket holds
SPOILT = table("rewards", "SPOILT")


def workers(tmp_path, source: str = REWARD_FILE, seconds: float = 60.0) -> FunctionWorkers:
    (tmp_path / "reward.py").write_text(source)
    return FunctionWorkers(str(tmp_path / "reward.py"), seconds, 1, Breaker(1000))


def test_copies_that_a_file_forks_of_its_process_answer_nothing(tmp_path):
    with workers(tmp_path) as asked:
        verdicts = [asked.grade(how, "", str(n)) for n, how in enumerate(("", *FORKS) * 4)]
    assert [verdict.reward for verdict in verdicts] == [*range(len(verdicts))], verdicts


def test_nor_do_copies_that_it_forks_while_it_is_imported(tmp_path):
    with workers(tmp_path, "import os\nos.fork()\n" + REWARD_FILE) as asked:
        assert [asked.grade("", "", str(n)).reward for n in range(20)] == [*range(20)]


def test_what_is_no_single_number_is_no_reward_and_the_next_rollout_has_its_own(tmp_path):
    with workers(tmp_path, seconds=3.0) as asked:
        for n, how in enumerate(SPOILT, 1):
            spoilt, next_one = asked.grade(how, "", str(n)), asked.grade("", "", str(-n))
            assert spoilt.reward is None and spoilt.failure, how
            assert next_one.reward == -n, how
        for n in range(203):  # the late answers of the first three come at any time
            verdict = asked.grade(LATE if n < 3 else "", "", str(n))
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
def test_the_end_of_a_process_is_reported(tmp_path, monkeypatch, how, told):
    monkeypatch.setattr(function_workers, "_EXIT_SECONDS", 60.0)
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
    with workers(tmp_path) as asked:
        assert asked.grade(LATE, "", "1").reward == 1
        (worker,) = asked.workers
        assert worker.pipe.poll(60.0)
        assert asked.grade("", "", "2").reward == 2
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, signal.SIG_DFL)


def test_a_file_of_this_package_is_that_of_the_node(tmp_path):
    """`ray job submit` unpacks the checkout into another folder on each node."""
    file = tmp_path / "job_0" / "openrlhf_shear" / "rewards" / "last_number.py"
    own = FILES["last_number"]
    assert here(str(file)) == own and here(str(tmp_path / "last_number.py")) != own
    with FunctionWorkers(str(file), 60.0, 1) as asked:
        assert asked.grade("1 + 1 = 2", "1 + 1 = ", "2").reward == 1


OWN = table("rewards", "OWN")


OF_OTHER_NAMES = [(name, what) for name in ("a-reward.py", "json.py") for what in ("pickles", "fork pools")]


@pytest.mark.parametrize(("name", "what"), [*(("reward.py", what) for what in OWN), *OF_OTHER_NAMES])
def test_a_file_is_a_module_that_finds_its_own_names_and_neighbours(tmp_path, name, what):
    (tmp_path / "beside.py").write_text("def same(x): return x\n")
    (tmp_path / name).write_text(OWN[what] + "def reward_func(q, p, l): return {'rewards': work(float(l[0]))}\n")
    with FunctionWorkers(str(tmp_path / name), 60.0, 1) as asked:
        verdict = asked.grade("", "", "3")
    assert verdict.reward == 3, verdict
    assert {path.name for path in tmp_path.iterdir()} == {"beside.py", name}


def test_a_worker_that_no_longer_reads_is_late(tmp_path):
    with workers(tmp_path, seconds=3.0) as asked:
        assert asked.grade("", "", "1").reward == 1
        (worker,) = asked.workers
        os.kill(worker.pid, signal.SIGSTOP)
        verdict = asked.grade(LARGE, "", "2")
        assert (verdict.failure, verdict.detail) == ("timeout", "reward_func took longer than 3 s")
        assert asked.grade("", "", "3").reward == 3


EDITS = {
    "the file": ("reward.py", "def reward_func(queries, prompts, labels): return {'rewards': -7.0}"),
    "a file that it imports": ("neighbour.py", "WORTH = -7.0"),
    "one that this imports": ("deep/inner.py", "WORTH = -7.0"),
}


@pytest.mark.parametrize("edit", [*EDITS, "a file that it does not import", "none"])
def test_a_file_that_is_edited_during_a_run_grades_nothing_more_in_new_processes(tmp_path, edit):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/__init__.py").write_text("")
    (tmp_path / "deep/inner.py").write_text("WORTH = 1.0")
    (tmp_path / "neighbour.py").write_text("from deep.inner import WORTH")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "reward.py").write_text(
        "import os, neighbour\n"
        "def reward_func(queries, prompts, labels):\n"
        "    return os._exit(1) if queries[0] == 'dies' else {'rewards': neighbour.WORTH}\n"
    )
    with FunctionWorkers(str(tmp_path / "reward.py"), 60.0, 1) as workers:
        assert workers.grade("a", "", "").reward == 1.0
        name, text = EDITS.get(edit, ("other.py", "x = 1" * (edit != "none")))
        (tmp_path / name).write_text(text)
        assert workers.grade("a", "", "").reward == 1.0, "the process has what it imported"
        assert workers.grade("dies", "", "").failure == "worker died"
        verdict = workers.grade("a", "", "")
        if edit in EDITS:
            assert verdict.failure == "file does not load" and "has changed since the run started" in verdict.detail
        else:
            assert verdict.reward == 1.0
