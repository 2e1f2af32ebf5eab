"""Finding the code in a response, reading labels, and comparing what is printed or returned."""

import json

import pytest

from openrlhf_shear.rewards.code import tests_of as read_tests
from openrlhf_shear.rewards.code.text import code_block, defines, needs_packages, same_output, same_value
from openrlhf_shear.rewards.jail.inside import plain


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("a\n```python\none\n```\nb\n```py\ntwo\n```", "two\n"),
        ("```python\none\n```\nOutput:\n```\n6\n```", "one\n"),
        ("```\none\n```\n```\ntwo\n```", "two\n"),
        ("```cpp\none\n```", "one\n"),
        ("```python\ncut off", "cut off"),
        ("  ```Python\n  one\n  ```", "  one\n"),
        ("~~~python\none\n~~~", "one\n"),
        ("no fence", None),
        ("inline ```code``` only", None),
        ("```python\none\n```\n```python\ntwo", "two"),
    ],
)
def test_the_last_python_block_counts(response: str, code: str | None):
    assert code_block(response) == code


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ("1\n2\n", "1\n2", True),
        ("1 2", " 1  2 \n\n", True),
        ("1\n2", "1 2", False),
        ("0.5", "0.5000001", True),
        ("0.5", "0.51", False),
        ("5", "5.0", True),
        ("5", "5.0000001", False),
        ("1e-9", "0", True),
        ("1000000.0", "1000000.5", True),
        ("1000000000000000000001", "1000000000000000000002", False),
        ("yes", "YES", False),
        ("", "", True),
        ("", "x", False),
        ("nan", "nan", True),
        ("1", "nan", False),
        ("1", "1_0", False),
        ("1.0", "1e999999", False),
        ("6", "6\n" * 10_000, False),
        ("6", "\u0666", False),
    ],
)
def test_outputs_are_compared_by_line_then_by_decimal_token(expected: str, got: str, same: bool):
    assert same_output(expected, got) is same


def test_code_is_searched_for_names_and_imports():
    assert defines("x = 1\ndef f(a): pass", "f") and defines("f = lambda: 1", "f") and defines("class f: pass", "f")
    assert not defines("    def f(a): pass", "f") and not defines("def fg(): pass", "f") and not defines("f == 1", "f")
    assert needs_packages("import os, numpy as np") and needs_packages("try:\n    from scipy.stats import norm")
    assert needs_packages("import os; import numpy")
    assert not needs_packages("import os.path as p, sys\nfrom collections import deque\n'from here'")


@pytest.mark.parametrize("given", [[[1, 2], 3], "[1, 2]\n3"])
@pytest.mark.parametrize("output", [[1, 2, 3], [[1, 2, 3]], "[1, 2, 3]", "[[1, 2, 3]]"])
def test_function_rows_in_all_their_encodings(given: object, output: object):
    tests = read_tests({"fn_name": "f", "inputs": [given], "outputs": [output]})
    assert tests.arguments == (([1, 2], 3),) and [1, 2, 3] in tests.accepted[0]


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        ([[1, 2.5], "a", None, {"k": [True]}, 2**70], ((1, 2.5 + 1e-9), "a", None, {"k": (True,)}, 2**70), True),
        ([1, 2.5], [1, 2.6], False),
        ({"k": [1]}, {}, False),
        ({"1": 2}, {1: 2}, True),
        ([1], {1}, False),
        ([1], [1, 1], False),
        ([1], 6, False),
        (1, None, False),
        (2**70, 2**70 + 1, False),
        (1.0, 10**400, False),
    ],
)
def test_values_are_compared_as_plain_values(wanted: object, got: object, same: bool):
    assert same_value(wanted, json.loads(json.dumps(plain.encode(got)))) is same
