"""The code grader on slices of downloaded benchmarks; `check_rewards gold` runs them whole."""

from pathlib import Path

import pytest

from openrlhf_shear.rewards.code import grade_code
from openrlhf_shear.rewards.code.self_check import SETS, canonical

DATA = Path(__file__).parents[2].parent / "shared" / "data"


pytestmark = pytest.mark.usefixtures("needs_jail")


@pytest.mark.skipif(not DATA.is_dir(), reason="the data folder is not here")
def test_the_benchmarks_own_solutions_pass_and_others_fail():
    rows = canonical(DATA, limit=3)
    assert {row["set"] for row in rows} == set(SETS)
    assert [row for row in rows if row["as_expected"] != row["tasks"]] == []


@pytest.mark.skipif(not (DATA / "humanevalplus").is_dir(), reason="HumanEval+ is not here")
def test_humanevalplus_32_is_mended():
    cases = [case for case in SETS["HumanEval+"](DATA) if case.name == "HumanEval/32"]
    right, wrong = (grade_code(case.program, case.tests, timeout=60, extract=False) for case in cases)
    assert right.passed, right
    assert not wrong.passed
    broken = cases[0].tests
    zero = "def find_zero(xs):\n    return 0.5\n"
    verdict = grade_code(broken["prompt"] + "    return 0\n" + zero, broken, timeout=60, extract=False)
    assert verdict.reason == "wrong_answer"
