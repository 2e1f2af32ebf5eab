"""EvalPlus's tests: a value that is only close must have the type and the length of the expected value."""

import json

import pytest
from benchmark_rows import DATA
from cases import table

from openrlhf_shear.data.files import open_rows
from openrlhf_shear.rewards import grade_code
from openrlhf_shear.rewards.code import tests as label_tests

pytestmark = pytest.mark.usefixtures("needs_jail")

# EvalPlus's comparison, as in both of its files
TEST = table("rewards", "EVALPLUS_TEST")
FLOATS = [0.1, 0.25]


@pytest.mark.parametrize(
    ("expected", "right", "wrong"),
    [
        ([0.5], "[0.5000000001]", "[]"),
        ([], "[]", "5"),
        ([], "[]", "0.5"),
        (FLOATS, "[0.1, 0.25]", "[0.1]"),
        (FLOATS, "[0.1 + 1e-9, 0.25]", "[]"),
        ((0.5,), "(0.5000000001,)", "()"),
        ((0.5,), "(0.5,)", "0.5000000001"),
        (0.5, "0.5000000001", "[]"),
        (0.5, "0.5000000001", "[0.5000000001]"),
        (2.0, "2", "None"),
        ([0.5, 0.5], "[0.5, 0.5]", "0.5"),
    ],
)
@pytest.mark.parametrize("layout", ["mbpp+", "humaneval+"])
def test_close_values_must_be_alike(expected, right, wrong, layout):
    test = TEST % (expected,)
    if layout == "humaneval+":
        body, _, call = test.strip().rpartition("\n")
        checked = call.replace("f(1)", "candidate(1)")
        label = {"prompt": "def f(x):\n", "entry_point": "f", "test": f"{body}\ndef check(candidate):\n    {checked}\n"}
    else:
        label = {"test_list": ["assert f(1)"], "test": test}
    said = [
        grade_code(f"def f(x):\n    return {value}", label, timeout=20, extract=False).correct
        for value in (right, wrong)
    ]
    assert said == [True, False]


@pytest.mark.skipif(not (DATA / "mbppplus").is_dir(), reason=f"{DATA / 'mbppplus'} is not there")
def test_all_comparisons_of_evalplus_are_mended():
    for name, close in (
        ("mbppplus/MbppPlus-OriginFmt.jsonl.gz", 375),
        ("humanevalplus/HumanEvalPlus-OriginFmt.jsonl.gz", 163),
    ):
        tests = [label_tests.tests_of(json.dumps(row)).tests for row in open_rows(str(DATA / name)).rows]
        texts = ["".join(parts) for parts in tests]
        assert sum("np.allclose" in text for text in texts) == close
        assert all("type(out) is type(exp)" in text for text in texts if "np.allclose(" in text)
