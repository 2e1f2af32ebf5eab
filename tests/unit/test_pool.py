"""The reward pool: many grades at once, each with its own fate, and nothing left behind."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from openrlhf_shear.rewards.graded import Graded, read_reward
from openrlhf_shear.rewards.pool import RewardPool, RewardSettings, golds_of
from openrlhf_shear.rewards.responses import answer_of


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"rewards": 1}, Graded(1.0, 1.0)),
        ({"rewards": [0.5], "scores": [1.0], "extra_logs": {"a": [2]}}, Graded(0.5, 1.0, extra_logs={"a": 2.0})),
        ({"rewards": True, "scores": None, "extra_logs": None}, Graded(1.0, 1.0)),
        ({"rewards": [[0.5]]}, Graded(0.5, 0.5)),
    ],
)
def test_rewards_in_every_form_openrlhf_takes(output, expected):
    assert read_reward(output) == expected


def test_tensors_and_arrays_are_read():
    import numpy
    import torch

    assert read_reward({"rewards": torch.tensor([0.25]), "scores": numpy.float32(1)}) == Graded(0.25, 1.0)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (None, "returned no dict"),
        ([1.0], "returned no dict"),
        ({}, "returned None"),
        ({"rewards": None}, "returned None"),
        ({"rewards": [1.0, 2.0]}, "wrong shape"),
        ({"rewards": []}, "wrong shape"),
        ({"rewards": float("nan")}, "not finite"),
        ({"rewards": 1.0, "scores": float("inf")}, "not finite"),
        ({"rewards": "1.0"}, "not a number"),
        ({"rewards": None, "failed": [{"index": 0, "reason": "timeout", "detail": ""}]}, "timeout"),
    ],
)
def test_what_is_no_reward_has_a_reason(output, reason):
    graded = read_reward(output)
    assert graded.reward is None and graded.reason == reason


def test_gold_answers_of_a_label():
    assert golds_of("[1, 2]") == "[1, 2]" and golds_of("[oops") == "[oops" and golds_of(7) == "7"
    assert golds_of('["1/2", "0.5"]') == ["1/2", "0.5"] == golds_of(["1/2", "0.5"])


@pytest.mark.parametrize(
    "end", ["", "<|im_end|>", "<|eot_id|>\n", "</s>", "<eos><pad><pad>", " <|im_end|><|endoftext|> "]
)
def test_special_tokens_at_the_end_are_no_part_of_an_answer(end):
    prompt = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
    assert answer_of(prompt + "```python\nprint('<|im_end|>')\n```" + end, prompt).endswith("<|im_end|>')\n```")
    assert answer_of(prompt + end, prompt) == ""


def test_a_long_response_is_stripped_at_once():
    started = time.monotonic()
    assert len(answer_of(" <|x" * 2_500_000 + "<|im_end|>", "")) == 10_000_000
    assert time.monotonic() - started < 20


FUNCTION = """
import os, sys, time, threading

def reward_func(queries, prompts, labels):
    (query,), (prompt,), (label,) = queries, prompts, labels
    print("a user's print goes nowhere near the answer")
    if query == "raise": raise ValueError("bad sample")
    if query == "exit": sys.exit(0)
    if query == "abort": os.abort()
    if query == "hang": time.sleep(3600)
    if query == "hang with children": os.fork() or time.sleep(3600); time.sleep(3600)
    if query == "none": return {"rewards": None}
    if query == "pid": return {"rewards": float(os.getpid())}
    if query == "slow": time.sleep(0.2)
    return {"rewards": float(label), "extra_logs": {"length": float(len(query))}}
"""


@pytest.fixture
def function_file(tmp_path) -> str:
    (tmp_path / "reward.py").write_text(FUNCTION)
    return str(tmp_path / "reward.py")


@pytest.fixture
def pool(function_file):
    with_threads = RewardPool(RewardSettings(function_file, cores=2, timeout=1.0))
    yield with_threads
    with_threads.close()


def children() -> set[int]:
    """Living processes of this process's session and all it started: by parent, found in /proc."""
    mine, parents = {os.getpid()}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return mine - {os.getpid()}


def test_each_sample_has_its_own_fate(pool):
    queries = ["good", "raise", "exit", "abort", "hang", "none", "good"]
    graded = pool.grade_all([(query, "", "1") for query in queries])
    assert [g.reason for g in graded] == [
        *(None, "raised ValueError", "worker died", "worker died", "timeout", "returned None", None)
    ]
    assert graded[0] == graded[-1] == Graded(1.0, 1.0, extra_logs={"length": 4.0})
    assert graded[1].detail == "bad sample"


def test_a_worker_stays_until_it_hangs(pool):
    first = pool.grade_all([("pid", "", "")] * 4)
    assert len({g.reward for g in first}) <= 2  # one a core
    pool.grade_all([("hang", "", "")] * 2)
    later = pool.grade_all([("pid", "", "")] * 4)
    assert not {g.reward for g in first} & {g.reward for g in later}


def test_a_file_that_does_not_load_fails_every_sample_and_says_why(tmp_path):
    (tmp_path / "reward.py").write_text("import no_such_module_anywhere")
    pool = RewardPool(RewardSettings(str(tmp_path / "reward.py"), cores=1, timeout=1.0))
    (graded,) = pool.grade_all([("q", "p", "l")])
    pool.close()
    assert graded.reason == "file does not load" and "no_such_module_anywhere" in graded.detail


def test_nothing_is_left_behind(function_file):
    before = children(), len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(2):
        pool = RewardPool(RewardSettings(function_file, cores=2, timeout=0.5))
        pool.grade_all([(query, "", "1") for query in ["good", "hang with children", "exit", "raise"] * 2])
        pool.close()
    assert (children(), len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_closing_does_not_wait_for_a_hung_grade(function_file):
    pool = RewardPool(RewardSettings(function_file, cores=1, timeout=600.0))

    async def hang_and_close():
        grade = asyncio.create_task(pool.grade("hang", "", ""))
        await asyncio.sleep(2.0)
        await asyncio.to_thread(pool.close)
        return await grade

    graded = asyncio.run(asyncio.wait_for(hang_and_close(), timeout=60))
    assert graded.reward is None


def test_many_grades_from_an_event_loop_stay_within_the_budget(function_file):
    pool = RewardPool(RewardSettings(function_file, cores=2, timeout=5.0), max_pending=4)
    most, inner = 0, pool._safely

    def watched(*sample):
        nonlocal most
        most = max(most, pool._threads._work_queue.qsize())
        return inner(*sample)

    pool._safely = watched

    async def all_of_them():
        return await asyncio.gather(*(pool.grade("x" * i, "", str(i)) for i in range(200)))

    started = time.monotonic()
    graded = asyncio.run(all_of_them())
    pool.close()
    assert [g.reward for g in graded] == [float(i) for i in range(200)]
    assert most <= 4, "back-pressure: no more than max_pending grades are taken in"
    assert time.monotonic() - started < 120
