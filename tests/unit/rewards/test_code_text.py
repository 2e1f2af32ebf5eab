"""Finding the code in a response, reading labels, and comparing outputs and return values."""

import json
import math
import random
from decimal import Decimal

import numpy as np
import pytest
from cases import table

from openrlhf_shear.rewards.code import tests_of as read_tests
from openrlhf_shear.rewards.code import text as module
from openrlhf_shear.rewards.code.inside import plain
from openrlhf_shear.rewards.code.text import (
    code_block,
    defines,
    needs_packages,
    readable,
    reads_input,
    same_output,
    same_value,
)


def test_the_last_python_block_counts():
    for response, code in table("rewards", "test_the_last_python_block_counts"):
        assert code_block(response) == code, response


PROGRAM = "n = int(input())\nprint(2 * n)"
ON_A_LINE = PROGRAM.replace("\n", "; ")
DRESSES = [each.replace("PROGRAM", PROGRAM).replace("ON_A_LINE", ON_A_LINE) for each in table("rewards", "DRESSES")]


@pytest.mark.parametrize("response", DRESSES)
def test_a_program_is_found_in_every_dress(response: str):
    assert code_block(response, reads_input).strip().partition("  #")[0] in (PROGRAM, ON_A_LINE)


@pytest.mark.parametrize("response", ["print('<answer>')", "Use ```code``` alone.", "</answer>", "<p>It is 4.</p>"])
def test_what_is_no_block_is_none(response: str):
    assert code_block(response, reads_input) is None


def test_a_block_that_is_tested_comes_before_a_later_one_and_code_before_none():
    for response, code in table("rewards", "test_a_block_that_is_tested_comes_before_a_later_one_and_code_before_none"):
        assert code_block(response, lambda block: defines(block, "f")) == code, response


def test_a_fence_in_a_text_of_the_program_is_part_of_it():
    doc = 'def f():\n    """Doubles.\n\n    ```\n    f(3)\n    ```\n    """\n    return 6\n'
    for code in (
        doc,
        doc.replace('"""', "'''"),
        doc.replace("```\n    f", "```python\n    f"),
        '# it\'s """\nx = 1\n',
        "s = \"'''\"\n",
        f'{doc}"""\n```\n"""\n',
    ):
        assert code_block(f"So:\n```python\n{code}```\nOr not?\n") == code
        assert code_block(f"```python\nx = 0\n```\nBetter:\n```python\n{code}```") == code
    broken = 'def f():\n    """Never closed\n'
    assert code_block(f"```python\n{broken}```\nAgain:\n```python\n{doc}```") == doc
    assert code_block(f"```python\n{broken}```\nThat is all.") == broken
    lines = ("\n```", '\n```python\n"""', '"""\n```\n', "\n```python\n'")
    for many in (*lines, '"""', '"""\\', '"\\', "'''\"\"\"\\", "\\", '\u00a0"\\', "'", "#"):
        assert readable(code_block("```python\n" + many * 100_000) or " "), "in no quadratic time"


def unlimited(response: str) -> str | None:
    """A slow `code_block` that follows its docstring: it reads each block to the end of its last text."""
    response, blocks = response.removeprefix("\ufeff"), []
    opened = module._OPENS.search(response)
    while opened:
        at, end, in_comments = opened.end(), None, []
        while end is None and (found := module._IN_CODE.search(response, at)):
            at = found.end()
            inside = [*module._FENCES.finditer(response, found.start(), at)] if found["text"] is not None else [found]
            python = any(module._PYTHON.match(fence["language"]) for fence in inside[1:])
            if found["text"] is None or (inside and (at == len(response) or python) and not inside[0]["language"]):
                end = inside[0]
            if (found["text"] or "").startswith("#"):
                in_comments += [*module._ENDS_COMMENT.finditer(response, found.start(), at)]
        end = end or next(iter(in_comments), None)
        body = response[opened.end() + 1 : end.start() if end else len(response)]
        language = opened["language"]
        blocks.append((module._PYTHON.match(language), language, module._outdented(body, opened["indent"] or "")))
        is_open = end is None or end["language"][:1].isalpha()
        opened = end if is_open else module._OPENS.search(response, end.end())
    every = [[text for python, *_, text in blocks if python], [text for _, language, text in blocks if not language]]
    return (every[0] or every[1] or [text for *_, text in blocks] or [None])[-1]


def test_blocks_of_everyday_length_are_read_as_if_there_was_no_limit():
    pieces = ("```\n", "```python\n", "```py\n", "~~~\n", " ```\n", "```c\n", "'''", '"""', "'", '"', "\\", "#", "\n")
    pieces += ("```", "Code: ```python\n", "# ```\n", "1. ```py\n")
    pieces += ("x += 1\n", "text ", "\u00a0", "\n```\n", "\n```python\n", "'''\n", '"""doc\n')
    chance, found = random.Random(0), 0
    for _ in range(4000):
        response = "".join(chance.choice(pieces) for _ in range(chance.randint(1, 40)))
        expected = unlimited(response)
        assert code_block(response) == expected, response
        found += expected is not None
    assert found > 3000


def test_code_is_freed_of_characters_of_web_pages():
    assert code_block("\ufeff```python\none\n```") == "one\n"
    assert code_block("\u00a0\u00a0```python\n\u00a0\u00a0one\n\u00a0\u00a0```") == "one\n"
    assert readable("\ufeffx = 1\nif x:\n\u00a0\u00a0print(\u00a0x\u200b)") == "x = 1\nif x:\n  print( x)"
    kept = "x = '\u00a0' # \u200b'  # \ufeff\ny = '''\u00a0\n\u200b'''\n"
    assert readable(kept) == kept


def test_outputs_are_compared_by_line_then_by_decimal_token():
    for expected, got in table("rewards", "test_outputs_are_compared_by_line_then_by_decimal_token"):
        assert same_output(expected, got), (expected, got)
    for expected, got in (
        *(("1\n2", "1 2"), ("0.5", "0.51"), ("5", "5.0000001"), ("1000000000000000000001", "1000000000000000000002")),
        *(("yes", "YES"), ("", "x"), ("1", "nan"), ("1", "1_0"), ("1.0", "1e999999"), ("6", "6\n" * 10_000)),
        *(("6", "\u0666"), ("00000", "0"), ("0001", "1"), ("1 007", "1 7"), ("-01", "-1"), ("00.50", "0.5")),
        *(("inf", "1e300"), ("Infinity", "-inf"), ("1e300", "inf"), ("-inf", "inf"), ("inf", "nan"), ("1", "infinity")),
    ):
        assert not same_output(expected, got), (expected, got)


def test_programs_that_read_stdin_are_told_from_others():
    for code in table("rewards", "test_programs_that_read_stdin_are_told_from_others"):
        assert reads_input(code), code
    for code in ("print(3)  # input()", "print('input()')", "f(input=3)", "input: 3", "'''stdin'''"):
        assert not reads_input(code), code


def test_code_is_searched_for_names_and_imports():
    assert defines("x = 1\ndef f(a): pass", "f") and defines("f = lambda: 1", "f") and defines("class f: pass", "f")
    assert not defines("    def f(a): pass", "f") and not defines("def fg(): pass", "f") and not defines("f == 1", "f")
    assert needs_packages("import os, numpy as np") and needs_packages("try:\n    from scipy.stats import norm")
    assert needs_packages("import os; import numpy")
    assert not needs_packages("import os.path as p, sys\nfrom collections import deque\n'from here'")


def test_function_rows_in_all_their_encodings():
    for output in ([1, 2, 3], [[1, 2, 3]], "[1, 2, 3]", "[[1, 2, 3]]"):
        tests = read_tests({"fn_name": "f", "inputs": [[[1, 2], 3], "[1, 2]\n3"], "outputs": [output, output]})
        assert tests.arguments == (([1, 2], 3),) * 2 and [1, 2, 3] in tests.accepted[0]


def test_values_are_compared_as_plain_values():
    for wanted, got, same in (
        ([[1, 2.5], "a", None, {"k": [True]}, 2**70], ((1, 2.5 + 1e-9), "a", None, {"k": (True,)}, 2**70), True),
        *(({"1": 2}, {1: 2}, True), ([1, 2.5], [1, 2.6], False), ({"k": [1]}, {}, False), ([1], {1}, False)),
        *(([1], [1, 1], False), ([1], 6, False), (1, None, False), (2**70, 2**70 + 1, False), (1.0, 10**400, False)),
        *((math.inf, math.inf, True), (math.inf, 1e308, False), (math.inf, -math.inf, False), (math.inf, 2**70, False)),
        *(([-math.inf], [0.0], False), (1.0, math.inf, False)),
    ):
        assert same_value(wanted, json.loads(json.dumps(plain.encode(got)))) is same, (wanted, got)


def test_an_array_of_objects_is_no_plain_value():
    numbers = np.arange(3.0)
    assert (plain.decode(plain.encode(numbers)) == numbers).all()
    with pytest.raises(ValueError, match="arrays hold numbers or text"):
        plain.decode(["array", plain.encode([Decimal(1)])])
