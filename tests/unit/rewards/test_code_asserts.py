"""Tests made of Python code: what they may use of a response, and tricks that must not fool them."""

import tomllib
from pathlib import Path

import pytest

from openrlhf_shear.rewards import Verdict, grade_code

pytestmark = pytest.mark.usefixtures("needs_jail")

CASES = tomllib.loads((Path(__file__).parents[2] / "data" / "code_cases.toml").read_text(encoding="utf-8"))


def grade(code: str, *tests: str, setup: str = "", **options) -> Verdict:
    label = {"test_list": [*tests], "test_setup_code": setup}
    return grade_code(code, label, timeout=20.0, extract=False, **options)


# --- arguments ---


def test_a_response_cannot_empty_the_arguments_of_the_reference():
    cheat = "def add(items):\n    items.clear()\n    return 0"
    honest = "def add(items):\n    got = sum(items)\n    items.clear()\n    return got"
    for case in CASES["reference"]:
        assert grade(cheat, case["test"], setup=CASES["total"]).reason == "wrong_answer", case
        assert grade(honest, case["test"], setup=CASES["total"]).correct, case


def test_changes_in_place_are_seen_where_a_test_asks_for_them():
    unchanged = {".sort()": ".copy()", "del x": "x", "= 1;": "== 1 if d else 1;", ".append(1)": ".copy()"}
    for case in CASES["in_place"]:
        response, test = case["response"], case["test"]
        assert grade(response, test).correct, case
        for change, none in unchanged.items():
            response = response.replace(change, none)
        assert not grade(response, test).correct, case


def test_a_builtin_is_called_as_ever_where_a_change_could_be_asked_for():
    assert grade("def f(x): return x", "x = [2, 1]\nx.sort()\nprint(x)\ny = sorted(x)\nassert f(y[0]) == x[0]").correct


# --- objects of the response ---


def test_an_object_that_answers_in_two_ways_is_refused():
    for case in CASES["two_ways"]:
        verdict = grade(CASES["otherwise"], case["test"])
        assert verdict.correct is False and verdict.reason in ("wrong_answer", "error"), (case, verdict)
        assert "in two ways" in verdict.detail, case


def test_objects_that_change_for_a_reason_are_not_refused():
    for case in CASES["changing"]:
        verdict = grade(case["response"], case["test"])
        assert verdict.correct, (case, verdict)


@pytest.mark.parametrize("kind", ["StopIteration", "StopAsyncIteration", "GeneratorExit", "Mine"])
def test_an_exception_of_a_response_ends_no_loop_of_a_test(kind: str):
    response = f"""
class Mine(StopIteration): pass
def f(x): raise {kind}
class Odd:
    method = size = property(lambda self: f(0))
    def __len__(self): raise {kind}
    __str__ = __bool__ = __iter__ = __len__
    def __getitem__(self, at): raise {kind}
"""
    for case in CASES["loops"]:
        verdict = grade(response, case["test"])
        assert (verdict.correct, verdict.reason) == (False, "error"), (case, verdict)
        assert kind in verdict.detail, case


def test_an_iterator_of_a_response_ends_as_ever():
    response = "class Two:\n    n = 0\n    def __iter__(self): return self\n    def __next__(self):\n"
    response += "        self.n += 1\n        if self.n > 2: raise StopIteration\n        return self.n\n"
    response += "def two(): yield from (1, 2)\ndef none():\n    raise StopIteration\n    yield"
    assert grade(response, "assert [*two()] == [*Two()] == [1, 2] and next(two()) == 1").correct
    assert not grade(response, "assert [*none()] == []").correct, "Python makes that a RuntimeError"


def test_an_endless_container_is_refused():
    response = "class All:\n    def __iter__(self):\n        while True: yield 1"
    assert "must end within" in grade(response, "assert [*All()]").detail


def test_tests_of_mbpp_plus_that_assert_nothing_are_mended():
    """Mbpp/737, 787 and 794 in the hub's layout: any program passed, one that returns None as well."""
    label = {"test_list": ["assert starts_a('ab')"], "test": CASES["mbpp_plus"]}
    head = "import re\ndef starts_a(text): return "
    for right in ("re.search('^a', text)", "bool(re.search('^a', text))", "text[:1] == 'a' or None"):
        assert grade_code(head + right, label, extract=False).correct
    for wrong in ("None", "True", "False", "re.search('^b', text)"):
        assert grade_code(head + wrong, label, extract=False).reason == "wrong_answer"


# --- names ---


def test_names_of_python_are_the_tests_and_those_under_test_the_responses():
    for case in CASES["shadows"]:
        cheat = case["response"]
        assert grade(f"{cheat}\ndef f(x): return 2 * x", case["test"]).correct, case
        assert not grade(f"{cheat}\ndef f(x): return 0", case["test"]).correct, case
    for case in CASES["own_names"]:
        assert grade(case["response"], case["test"]).correct, case


# --- prompts ---


@pytest.mark.parametrize("docstring", ["", "    '''Double it.'''\n"])
@pytest.mark.parametrize("head", ["def double(x):\n", "class A:\n    pass\n\n\ndef double(x: int) -> int:\n\n"])
def test_a_prompt_needs_no_docstring(head: str, docstring: str):
    test = "def check(candidate):\n    assert candidate(3) == 6\n"
    label = {"prompt": head + docstring, "entry_point": "double", "test": test}
    for response in ("    return 2 * x", "def double(x):\n    return 2 * x"):
        verdict = grade_code(response, label, timeout=20.0, extract=False)
        assert verdict.correct, verdict
        assert not grade_code(response.replace("2", "3"), label, timeout=20.0, extract=False).correct
