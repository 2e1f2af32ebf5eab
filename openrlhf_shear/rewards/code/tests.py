"""Tests of a programming problem, and the forms that they have in datasets' labels."""

import ast
import contextlib
import json
import re
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from openrlhf_shear.rewards.code.text import defines, reads_input, top_level_names

_MENDS = tomllib.loads(Path(__file__).with_name("mended.toml").read_text(encoding="utf-8"))["mend"]
*_, CLOSE = ((mend["line"], mend["mended"]) for mend in _MENDS)  # EvalPlus's comparison of floats, and what replaces it


@dataclass(frozen=True)
class StdinTests:
    """Tests of a program that reads `inputs[i]` from stdin and writes `outputs[i]`."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    checker: str = ""  # Python that defines `check(input, expected, output) -> bool`; "": the outputs are compared

    def __len__(self) -> int:
        return len(self.inputs)

    def run(self, block: str) -> bool:
        """Return whether these tests run a block of code, and not only an example of its use."""
        return reads_input(block)


@dataclass(frozen=True)
class FunctionTests:
    """Tests in which `name(*arguments[i])` returns one of the values `accepted[i]`.

    `name` is a function or a method of `Solution`.
    """

    name: str
    arguments: tuple[tuple, ...]
    accepted: tuple[tuple, ...]
    checker: str = ""  # as in `StdinTests`; gets the list of arguments, the expected and the returned value

    def __len__(self) -> int:
        return len(self.arguments)

    def run(self, block: str) -> bool:
        """As in `StdinTests`."""
        return defines(block, self.name) or defines(block, "Solution")

    def expected(self, at: int) -> object:
        """Return the value that test `at` expects, parsed if the label has it as JSON text."""
        value, *others = self.accepted[at]
        return others[0] if isinstance(value, str) and others else value


@dataclass(frozen=True)
class AssertTests:
    """Tests in Python that raise if the response is wrong."""

    tests: tuple[str, ...]  # a test each; they share their names, after `setup`
    setup: str = ""
    entry_point: str | None = None  # defined by the response; None: all names that the tests use and nothing defines
    prompt: str = ""  # completed or repeated by the response (HumanEval); the tests see its helpers
    leetcode: bool = False  # LeetCode's imports, TreeNode and ListNode are in scope, for response and tests
    helpers: str = ""  # the prompt as code that runs on its own

    def __len__(self) -> int:
        return len(self.tests)

    def run(self, block: str) -> bool:
        """As in `StdinTests`."""
        if self.entry_point:
            return defines(block, self.entry_point) or defines(block, "Solution")
        return any(re.search(rf"\b{name}\b", test) for name in top_level_names(block) for test in self.tests)


Tests = StdinTests | FunctionTests | AssertTests


def tests_of(label: str | dict | Tests) -> Tests:
    """Return the tests in a label: JSON or a dict in one of the forms that datasets use.

        {"inputs": [...], "outputs": [...]}                     Eurus, TACO, CodeContests; an input may be its lines
        {"inputs": [...], "outputs": [...], "fn_name": ...}     the same with a function
        the same two with "checker": "..."                      its `check(input, expected, output)` decides
        {"functional": "..."}                                   LeetCode: ends in `check(Solution().name)`
        {"test": ..., "entry_point": ..., "prompt": ...}        HumanEval, HumanEval+
        {"test_list": [...], "test_setup_code" or "test_imports": ..., "test": ...}     MBPP, MBPP+ (`test` wins)

    Datasets encode rows with a function in several ways. Arguments: a list, or a text with a JSON value on each line. A
    result: a value, the same in a list of one, or JSON text of either. All readings are accepted.

    Raises ValueError: the label has none of these forms, or no tests.
    """
    tests = label if isinstance(label, Tests) else _recognised(label)
    if not len(tests):
        raise _wrong("at least one test", label)
    return tests


def _recognised(label: str | dict) -> Tests:
    if isinstance(label, str):
        try:
            label = _parsed(label)
        except ValueError as error:
            raise _wrong("JSON", label) from error
    if not isinstance(label, dict):
        raise _wrong("a dict", label)
    if "inputs" in label:
        return _from_inputs(label)
    if "functional" in label:
        return AssertTests((_text(label, "functional"),), leetcode=True)
    if "entry_point" in label:
        name, test = _text(label, "entry_point"), _mended(_text(label, "test"))
        prompt = label.get("prompt") or ""
        run = (f"{test}\n\ncheck({name})\n",)
        return AssertTests(run, entry_point=name, prompt=prompt, helpers=_runnable(prompt))
    if "test_list" in label:
        setup = [*_listed(label.get("test_imports") or []), label.get("test_setup_code") or ""]
        whole = _mended(_text(label, "test")) if label.get("test") else None
        return AssertTests((whole,) if whole else tuple(_listed(label["test_list"])), "\n".join(setup))
    raise _wrong("in one of the known forms", sorted(label))


def _mended(test: str) -> str:
    """Return a test of EvalPlus with its faults mended."""
    for mend in _MENDS:
        test = test.replace(mend["line"], mend["mended"])
    return test


def _from_inputs(label: dict) -> StdinTests | FunctionTests:
    inputs, outputs = label["inputs"], label.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise _wrong("lists `inputs` and `outputs`", label)
    if len(inputs) != len(outputs):
        raise _wrong("as many outputs as inputs", label)
    checker = _checker(label) if label.get("checker") else ""
    if label.get("fn_name"):
        arguments, accepted = tuple(map(_arguments, inputs)), tuple(map(_accepted, outputs))
        return FunctionTests(_text(label, "fn_name"), arguments, accepted, checker)
    return StdinTests(tuple(map(_lines, inputs)), tuple(map(_lines, outputs)), checker)


def _checker(label: dict) -> str:
    source = _text(label, "checker")
    with contextlib.suppress(SyntaxError, ValueError):
        if any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in ast.parse(source).body):
            return source
    raise _wrong("with a `checker` of Python that defines check(input, expected, output)", source)


def _runnable(prompt: str) -> str:
    """Return a prompt as code that runs: a prompt that ends in a function's head, without a docstring, gets a body."""
    head = prompt.rstrip().rpartition("\n")[2]
    body = f"{prompt.rstrip()}\n{head[: len(head) - len(head.lstrip())]}    pass\n"
    for source in (prompt, body):
        with contextlib.suppress(SyntaxError, ValueError):
            ast.parse(source)
            return source
    return prompt


def _text(label: dict, key: str) -> str:
    if not isinstance(label.get(key), str):
        raise _wrong(f"a dict with text under {key!r}", label)
    return label[key]


def _listed(value: list | str) -> list[str]:
    """Return a list of texts; MBPP+ stores its lists as Python text."""
    with contextlib.suppress(ValueError, SyntaxError):
        value = ast.literal_eval(value) if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong("a list of tests", value)
    return value


def _lines(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def _arguments(value: object) -> tuple:
    if isinstance(value, str):
        try:
            return tuple(_parsed(line) for line in value.split("\n") if line.strip())
        except ValueError:
            return (value,)
    return tuple(value) if isinstance(value, list) else (value,)


def _accepted(result: object) -> tuple:
    readings = [result]
    if isinstance(result, str):
        with contextlib.suppress(ValueError):
            readings.append(_parsed(result))
    readings += [reading[0] for reading in readings if isinstance(reading, list) and len(reading) == 1]
    return tuple(readings)


def _parsed(text: str) -> object:
    """Return a JSON value, whose integers may have any number of digits. Raises ValueError: it is none."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 4000 else int(Decimal(digits)))


def _wrong(needed: str, got: object) -> ValueError:
    return ValueError(
        f"tests must be {needed}: got {str(got)[:200]!r}; use e.g. {{'inputs': ['1\\n'], 'outputs': ['2\\n']}}"
    )
