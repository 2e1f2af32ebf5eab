"""The code grader: right programs pass, whatever else a response does fails its own grade only."""

import json
import os
import textwrap
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cases import table
from processes import descendants, descriptors, stats, wait_until

from openrlhf_shear.rewards import Verdict, grade_code
from openrlhf_shear.rewards.code import hosts
from openrlhf_shear.rewards.code.hosts import CodeWorkers
from openrlhf_shear.rewards.jail import JailError

DOUBLE = {"inputs": ["3\n", "-4\n"], "outputs": ["6\n", "-8\n"]}
DOUBLE_CALLS = {"fn_name": "double", "inputs": [[3], [-4]], "outputs": [6, -8]}
DOUBLE_ASSERTS = {"test_list": ["assert double(3) == 6", "assert double(-4) == -8"]}
RIGHT = {
    "stdin": ("print(2 * int(input()))", DOUBLE),
    "function": ("def double(x):\n    return 2 * x", DOUBLE_CALLS),
    "assert": ("def double(x):\n    return 2 * x", DOUBLE_ASSERTS),
}

CASES = tomllib.loads((Path(__file__).parents[2] / "data" / "code_cases.toml").read_text(encoding="utf-8"))
CHEATS = {case["name"]: case["program"] for case in CASES["cheats"]} | {  # the grader can parse none of these three
    "deep source": "x = " + "-" * 200_000 + "1",
    "null bytes": "print(6)\0",
    "lone surrogate": "print('\ud800')",
}
GRADED = table("rewards", "GRADED")
ENDLESS = {case["name"] for case in CASES["cheats"] if case.get("endless")}


pytestmark = pytest.mark.usefixtures("needs_jail")


OWN_FILE = CASES["own_file"]


def grade(code: str, tests: object, **options) -> Verdict:
    options = {"timeout": 20.0, "extract": False, **options}
    return grade_code(code, tests, **options)


@pytest.mark.parametrize("kind", RIGHT)
def test_a_right_response_passes_and_a_wrong_one_fails_where_it_is_wrong(kind: str):
    code, tests = RIGHT[kind]
    verdict = grade_code(f"Doubling does it.\n```python\n{code}\n```\nThat is all.", json.dumps(tests), timeout=20)
    assert verdict == Verdict(True, outcomes=("passed", "passed"))
    assert verdict.seconds > 0
    wrong = code.replace("2 * int(input())", "abs(2 * int(input()))").replace("2 * x", "abs(2 * x)")
    verdict = grade(wrong, tests)
    assert (verdict.correct, verdict.outcomes, verdict.reason) == (False, ("passed", "wrong_answer"), "wrong_answer")
    none = grade("", tests)
    assert (none.correct, none.outcomes, none.reason) == (False, ("not_run", "not_run"), "no_code")


def test_later_tests_are_not_run_after_a_failure():
    three = {"inputs": ["1", "2", "3"], "outputs": ["1", "0", "3"]}
    asserts = {"test_list": ["assert f(1) == 1", "assert f(2) == 0", "assert f(3) == 3"]}
    for program, tests in (("print(input())", three), ("f = abs", asserts)):
        assert grade(program, tests).outcomes == ("passed", "wrong_answer", "not_run")


def test_programs_read_and_end_in_many_ways():
    for program in (*(case["program"] for case in CASES["doubles"]), f"{OWN_FILE}print(2 * int(input()))"):
        verdict = grade(program, DOUBLE)
        assert verdict.correct, (program, verdict)


def test_what_a_program_s_own_file_writes_at_its_end_counts_once_and_only_that():
    assert grade(f"{OWN_FILE}print(7)", DOUBLE).detail == "test 0: printed '7\\n'"
    assert grade(f"{OWN_FILE}def double(x): return 2 * x", DOUBLE_CALLS).correct


def test_the_block_that_defines_what_the_tests_call_counts_and_not_an_example_of_its_use():
    used = "```python\ndef double(x):\n    return {} * x\n```\nFor example:\n```python\nprint(double(3))\n```"
    for tests in (DOUBLE_CALLS, DOUBLE_ASSERTS):
        assert grade(used.format(2), tests, extract=True).correct
        assert grade(used.format(3), tests, extract=True).reason == "wrong_answer"
    twice = "```python\ndef double(x): return 2 * x\n```\nBetter:\n```python\ndef double(x): return x\n```"
    assert grade(twice, DOUBLE_CALLS, extract=True).reason == "wrong_answer", "the last one that does"


def test_integers_may_have_any_number_of_digits():
    """Python's own limit is 4,300."""
    big, double = "7" * 5001, f"1{'5' * 5000}4"
    assert grade("print(2 * int(input()))", {"inputs": [big], "outputs": [double]}).correct
    calls = f'{{"fn_name": "double", "inputs": [[{big}]], "outputs": [{double}]}}'
    for label in (calls, {"fn_name": "double", "inputs": [big], "outputs": [double]}):
        assert grade("def double(x): return 2 * x", label).correct
        assert grade("def double(x): return 2 * x + 1", label).reason == "wrong_answer"
    assert grade("def double(x): return 2 * x", {"test_list": [f"assert double({big}) == {double}"]}).correct


def test_a_program_need_not_read_its_input():
    big = {"inputs": ["x" * 5_000_000], "outputs": ["1"]}
    assert grade("print(1)", big).correct
    assert grade("print(len(input()) // 5000000)", big).correct


def test_exit_code_and_output_both_count():
    verdict = grade("print(2 * int(input()))\nraise ValueError('late')", DOUBLE)
    assert (verdict.reason, verdict.detail) == ("error", "ValueError: late")
    for mib, outcome in ((7, "passed"), (9, "output_limit")):
        prints = {"inputs": [""], "outputs": ["x" * (mib << 20)]}
        assert grade(f"print('x' * ({mib} << 20))", prints).outcomes[0] == outcome, "8 MiB may be printed"


def test_a_program_has_the_memory_and_the_processor_time_that_it_is_given():
    says = "from resource import *\nprint(getrlimit(RLIMIT_AS)[1] >> 20, getrlimit(RLIMIT_CPU)[1])"
    assert grade(says, {"inputs": [""], "outputs": ["256 6"]}, memory_mb=256, timeout=5.0).correct


@pytest.mark.parametrize("name", GRADED)
def test_programs_are_graded_by_tests_of_every_form(name: str):
    for reason, programs in GRADED[name].items():
        for program in programs if reason != "tests" else ():
            verdict = grade(program, GRADED[name]["tests"])
            assert (verdict.reason or "passed", verdict.correct) == (reason, reason == "passed"), (program, verdict)


@pytest.mark.parametrize("name", CHEATS)
def test_programs_and_functions_that_cheat(name: str, monkeypatch):
    monkeypatch.setattr(hosts, "GRACE_SECONDS", 0.5)
    for kind in ("assert", "function" if "def double" in CHEATS[name] else "stdin"):
        verdict = grade(CHEATS[name], RIGHT[kind][1], timeout=0.5 if name in ENDLESS else 20.0, memory_mb=256)
        assert verdict.correct is False and (name in ENDLESS) >= (verdict.outcomes[0] == "timeout"), (kind, verdict)


def test_good_responses_pass_after_bad_ones_and_nothing_is_left():
    before = descriptors(), descendants()
    with CodeWorkers(2) as workers, ThreadPoolExecutor(4) as pool:
        for program in (*map(CHEATS.get, ENDLESS), "print('6' * 10**9)", "import os\nos.kill(-1, 9)"):
            for tests in (DOUBLE, DOUBLE_ASSERTS):
                grade(program, tests, timeout=0.3, memory_mb=256, workers=workers)
        verdicts = pool.map(lambda kind: grade(*RIGHT[kind], workers=workers), [*RIGHT] * 4)
        assert all(verdict.correct for verdict in verdicts)
    assert wait_until(lambda: (descriptors(), descendants()) == before)


def test_no_response_raises():
    texts = ("", " \n", "```python\n```", "\0", "\ud800", "x" * 2_000_000, "```" * 100_000)
    for response in (None, 5, b"print(6)", *texts):
        verdict = grade_code(response, DOUBLE, timeout=20)
        assert not verdict.correct and verdict.reason in ("no_code", "too_long", "error")
    assert grade_code("I think that it is six.", DOUBLE, timeout=20).reason == "no_code"  # prose
    assert grade_code("print(2 * int(input()))", DOUBLE, timeout=20).correct  # all of it is code


def test_malformed_tests_are_the_data_s_fault():
    lists = {"inputs": [], "outputs": []}, {"inputs": ["1"], "outputs": []}, {"inputs": "1", "outputs": "1"}
    others = {"functional": 5}, {"entry_point": "f"}, {"test_list": "[1]"}, {"test_list": []}
    for label in ("not json", "[]", {}, *lists, *others):
        with pytest.raises(ValueError, match="tests must be"):
            grade_code("print(1)", label)


def test_descriptors_beyond_the_jail_s_limit_do_no_harm():
    many = [os.dup(0) for _ in range(300)]
    try:
        assert [kind for kind, (code, tests) in RIGHT.items() if not grade(code, tests).correct] == []
    finally:
        for fd in many:
            os.close(fd)


@pytest.mark.parametrize("kind", RIGHT)
def test_without_a_sandbox_only_when_asked_and_nothing_is_left(kind: str, no_bubblewrap, tmp_path):
    code, tests = RIGHT[kind]
    before = descendants()
    with pytest.raises(JailError, match="no jail for untrusted code"):
        grade(code, tests)
    assert grade(code, tests, allow_unsandboxed=True).correct
    assert grade("while True: pass", tests, allow_unsandboxed=True, timeout=0.3).reason == "timeout"
    note = tmp_path / "pid"
    says = f"import os\nopen({str(note)!r}, 'w').write(str(os.getpid()))\nwhile True: pass"
    endless = says if kind == "stdin" else f"def double(x):\n{textwrap.indent(says, '    ')}"
    assert grade(endless, tests, allow_unsandboxed=True, timeout=3.0).reason == "timeout"
    assert wait_until(lambda: int(note.read_text()) not in stats() and descendants() <= before)
    forks = "import os\nos.fork()\n" + code
    assert grade(forks, tests, allow_unsandboxed=True).detail.startswith("PermissionError")


def test_limits_that_nothing_can_run_in_are_refused():
    for options in ({"timeout": 0}, {"timeout": float("inf")}, {"timeout": float("nan")}, {"memory_mb": 1}):
        with pytest.raises(ValueError, match="timeout must be above 0"):
            grade_code("print(1)", DOUBLE, **options)
