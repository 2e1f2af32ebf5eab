"""Several right outputs: a label's checker, in a jail; and the total time of a task's tests."""

import contextlib
import json
import os
import signal
import threading
from types import SimpleNamespace

import pytest
from cases import cases
from processes import PATIENCE, descendants

from openrlhf_shear.rewards import Verdict, grade_code
from openrlhf_shear.rewards.code import grade as grading
from openrlhf_shear.rewards.code import tests_of as read_tests
from openrlhf_shear.rewards.code.checker import Checker
from openrlhf_shear.rewards.code.hosts import CodeWorkers

pytestmark = pytest.mark.usefixtures("needs_jail")

# Two numbers with this sum: any will do.
SUM = """
def check(input, expected, output):
    numbers = [int(token) for token in output.split() if token.lstrip('-').isdigit()]
    return len(numbers) == 2 and sum(numbers) == int(input)
"""
STDIN = {"inputs": ["5\n", "7\n"], "outputs": ["2 3\n", "3 4\n"], "checker": SUM}
SAME = "def check(input, expected, output):\n    return sorted(output) == sorted(expected)\n"
FUNCTION = {"fn_name": "split", "inputs": [["ab"], ["cd"]], "outputs": [["a", "b"], ["c", "d"]], "checker": SAME}


def grade(code: str, tests: dict, **options) -> Verdict:
    return grade_code(code, json.dumps(tests), **{"timeout": 20.0, "extract": False, **options})


@pytest.mark.parametrize(*cases("rewards", "test_a_checker_that_gives_no_answer_is_a_broken_label"))
def test_a_checker_that_gives_no_answer_is_a_broken_label(body: str, said: str):
    tests = STDIN | {"checker": f"def check(input, expected, output):\n    {body}\n"}
    verdict = grade("print(1, 4)", tests, timeout=2.0 if said == "timeout" else 20.0)
    assert (verdict.correct, verdict.failure) == (None, "checker failed"), verdict
    assert said in verdict.detail


# 40,000 numbers with one hash: each is compared with all before it. The program writes the encoded form directly.
FORGE = "import json, os\ndef split(text):\n    prime = (1 << 61) - 1\n"
FORGE += "    body = json.dumps(['set', [['int', hex(k * prime)] for k in range(40_000)]]).encode()\n"
FORGE += "    with open(90, 'wb') as answer: answer.write(body)\n    os._exit(0)"
BREAKS = {  # output of a program: (program, tests, body of the checker, outcome)
    "a text that is no number": ("print('x')", STDIN, "return sum(map(int, output.split())) == 5", "wrong_answer"),
    "a set that takes minutes to build": (FORGE, FUNCTION, "return True", "timeout"),
    "a range that is endless to sort": ("def split(text): return range(10**15)", FUNCTION,
                                        "return sorted(output) == expected", "wrong_answer"),
    "a list of equal hashes": ("def split(text): return [n * (2**61 - 1) for n in range(120_000)]", FUNCTION,
                               "return set(output) == set(expected)", "timeout"),
    "a value that ends the checker": ("def split(text): return 5", FUNCTION,
                                      "import os\n    return os._exit(3) if output == 5 else True", "wrong_answer"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_an_output_that_breaks_its_checker_is_wrong_and_no_failure(name: str):
    program, tests, body, outcome = BREAKS[name]
    tests = tests | {"checker": f"def check(input, expected, output):\n    {body}\n"}
    seconds = (3.0 if outcome == "timeout" else 20.0) * PATIENCE / 90
    verdict = grade(program, tests, timeout=seconds)
    assert (verdict.correct, verdict.failure, verdict.reason) == (False, None, outcome), verdict
    assert "gave no answer for this output" in verdict.detail


def test_a_checker_has_the_rest_of_the_total_and_at_least_a_second():
    slow = "import time\ndef check(input, expected, output):\n    time.sleep(0 if output == expected else 600)\n"
    tests = {"inputs": [""] * 40, "outputs": ["x"] * 40, "checker": slow + "    return True"}
    verdict = grade("print('y')", tests, timeout=600.0, total=1.0)
    assert (verdict.outcomes[0], verdict.failure) == ("timeout", None)
    assert "took 1 s together" not in verdict.detail


def test_a_checker_that_cannot_be_one_is_refused_when_the_label_is_read():
    for checker in ("def checks(a, b, c): return True", "def check(:", 5, "check = print", "def check(a):\n\0"):
        with pytest.raises(ValueError, match=r"tests must be .*check"):
            read_tests(STDIN | {"checker": checker})
    assert read_tests(STDIN | {"checker": None}).checker == ""


def test_what_a_response_forges_is_wrong():
    for forged in ('["handle", 1, "x"]', '["unknown"]', "[" * 400 + "]" * 400, '["int", "x"]', "{}"):
        forges = f"import os\ndef split(text):\n    os.write(90, {forged.encode()!r})\n    os._exit(0)"
        assert grade(forges, FUNCTION).reason == "wrong_answer", forged


@pytest.mark.parametrize(("begin", "end"), [('["array", ', "]"), ('["list", [', "]]"), ('{"a": ', "}")])
def test_a_value_that_is_forged_at_any_depth_is_wrong_and_no_failure(begin: str, end: str):
    checker = SimpleNamespace(check=lambda at, output, seconds: len(json.dumps(output)) < 2)
    plain = read_tests({name: FUNCTION[name] for name in ("fn_name", "inputs", "outputs")})
    for depth in (*range(1100), 2000, 9900, 40_000, 200_000):  # from 985 on, Python's own limits were met
        ended = {"how": "ended", "code": 0, "stderr": "", "answer": begin * depth + "12" + end * depth}
        for asked in (checker, None):
            outcome, _ = grading._judged(plain, 0, ended, asked, 1.0)
            assert outcome in ("error", "wrong_answer"), depth
    for depth in (99, 399, 985, 9900):
        forges = f"import os\ndef split(text):\n    body = {begin!r} * {depth} + '1' + {end!r} * {depth}\n"
        verdict = grade(f"{forges}    open(90, 'w').write(body)\n    os._exit(0)", FUNCTION)
        assert verdict.reason in ("error", "wrong_answer"), (depth, verdict)


def test_a_checker_that_is_killed_is_no_broken_label(monkeypatch):
    waits = {"inputs": [""], "outputs": [""], "checker": "import time\ndef check(*given):\n    time.sleep(600)"}
    asked, check = threading.Event(), Checker.check
    monkeypatch.setattr(Checker, "check", lambda *given: (asked.set(), check(*given))[1])

    def kill_all() -> None:
        for _ in range(2):
            assert asked.wait(60.0)
            asked.clear()
            for pid in descendants() - before:
                with contextlib.suppress(ProcessLookupError):  # it went with another
                    os.kill(pid, signal.SIGKILL)

    before = descendants()
    killer = threading.Thread(target=kill_all)
    killer.start()
    with CodeWorkers(1) as workers:
        verdict = grade("print()", waits, workers=workers)
    killer.join()
    assert verdict.failure == "jail died"


# --- the time of a task ---

SLOW = {"inputs": [""] * 40, "outputs": ["x"] * 40}


def test_all_tests_of_a_task_share_a_total():
    program = "import time\ntime.sleep(0.5)\nprint('x')"
    verdict = grade(program, SLOW, total=3.0)
    assert verdict.reason == "timeout" and verdict.outcomes[-1] == "not_run"
    assert 1 <= verdict.outcomes.count("passed") <= 6


def test_a_test_that_hangs_ends_with_the_total():
    assert grade("while True: pass", SLOW, timeout=600.0, total=0.5).reason == "timeout"
    asserts = {"test_list": ["assert f() == 1"]}
    assert grade("def f():\n    while True: pass", asserts, timeout=600.0, total=0.5).reason == "timeout"


def test_the_total_is_some_time_outs_and_at_least_half_a_minute(monkeypatch):
    seen = []
    monkeypatch.setattr(grading, "_Grade", lambda *given: seen.append(given[4]))
    for options in ({"timeout": 1.0}, {"timeout": 10.0}, {"timeout": 10.0, "total": 12.0}):
        with pytest.raises(AttributeError):
            grade("print()", SLOW, **options)
    assert seen == [(1.0, 30.0), (10.0, 60.0), (10.0, 12.0)]
    for total in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="total must be above 0"):
            grade("print()", SLOW, total=total)
