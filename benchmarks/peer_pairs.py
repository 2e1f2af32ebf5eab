"""Pairs of a gold and an answer in the tests of other graders, read from a folder that holds downloads of theirs.

Python tests are parsed, and never run: tables of `pytest.mark.parametrize`, and asserts on a function of two texts, as
Math-Verify, hendrycks/math, NeMo-Skills and tinker-cookbook have them. JSON files are lists of objects with GT and Ans,
as OlympiadBench has them.
"""

import ast
import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from openrlhf_shear.rewards.maths.text import FORMULA

_GOLD_SECOND = {"grade_answer"}  # tinker-cookbook's takes the answer first
_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}")
_LABELS = ("expected", "result", "equal", "correct")


@dataclass(frozen=True)
class Pair:
    """A gold and an answer, and whether their authors want it to be right.

    Attributes:
        tolerance: absolute distance that the authors allow.
    """

    source: str
    gold: str
    answer: str
    right: bool
    tolerance: float | None = None


def pairs_in(folder: Path) -> list[Pair]:
    """Return the pairs of all files below a folder, each once. Raises ValueError: it has none."""
    pairs: list[Pair] = []
    for path in sorted(folder.rglob("*")):
        source = str(path.relative_to(folder))
        with contextlib.suppress(SyntaxError, ValueError):  # a file of something else
            if path.suffix == ".py" and "test" in path.name:
                pairs += _of_tests(source, ast.parse(path.read_text(encoding="utf-8")))
            elif path.suffix == ".json":
                pairs += _of_examples(source, json.loads(path.read_text(encoding="utf-8")))
    if not pairs:
        raise ValueError(f"no pairs found: got {folder}; use a folder with e.g. Math-Verify/tests/test_all.py")
    return [replace(pair, gold=_mended(pair.gold), answer=_mended(pair.answer)) for pair in dict.fromkeys(pairs)]


def response_of(text: str) -> str:
    r"""Return a text as a response: a formula or a few words alone are boxed.

    >>> response_of("$x$"), response_of("So $x$ it is."), response_of("odd")
    ('\\boxed{$x$}', 'So $x$ it is.', '\\boxed{odd}')
    """
    words = _WORD.findall(FORMULA.sub(" ", text))
    alone = r"\box" not in text and (not words or (len(words) < 3 and not FORMULA.search(text)))
    return rf"\boxed{{{text}}}" if alone else text


def _mended(text: str) -> str:
    """Return a text of LaTeX whose authors wrote each backslash twice as it was meant."""
    return text if re.search(r"\\begin|(?<!\\)\\[a-z]", text) else re.sub(r"\\\\(?=[A-Za-z(){}!])", r"\\", text)


def _of_examples(source: str, rows: object) -> Iterator[Pair]:
    for row in rows if isinstance(rows, list) else ():
        for answer in row.get("Ans", ()) if isinstance(row, dict) else ():
            near = answer.get("precision")
            tolerance = float(near) if isinstance(near, (int, float, str)) else None
            yield Pair(source, row["GT"], answer["answer"], bool(answer["equal"]), tolerance)


def _of_tests(source: str, tree: ast.Module) -> Iterator[Pair]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test"):
            yield from _of_table(source, function)
            yield from _of_asserts(source, function)


def _of_table(source: str, function: ast.FunctionDef) -> Iterator[Pair]:
    body = ast.unparse(function)
    strict = "strict=strict" in body
    for call in function.decorator_list:
        if not (isinstance(call, ast.Call) and ast.unparse(call.func).endswith("parametrize") and len(call.args) > 1):
            continue
        names = [name.strip() for name in str(_value(call.args[0])).split(",")]
        for row in getattr(call.args[1], "elts", ()):
            values = _value(row)
            if not isinstance(values, tuple) or len(values) < 2 or None in values[:2]:
                continue
            named = dict(zip(names, values, strict=False)) if len(names) > 1 else {}
            if strict and not named.get("strict"):
                continue
            label = next((named[name] for name in _LABELS if name in named), None)
            if label is None and len(names) == 1 and len(values) == 2 and " is " in body:
                label = "is True" in body
            if isinstance(label, (bool, int)):
                yield Pair(source, str(values[0]), str(values[1]), bool(label))


def _of_asserts(source: str, function: ast.FunctionDef) -> Iterator[Pair]:
    """Yield the pairs of `assert f(gold, answer)`, `assert not f(...)`, `self.assertTrue(f(...))`."""
    known: dict[str, object] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = _value(node.value)
        test, right = getattr(node, "test", None) if isinstance(node, ast.Assert) else None, True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            test, right = (node.args[0], node.func.attr == "assertTrue") if "assert" in node.func.attr else (None, True)
        if isinstance(test, ast.UnaryOp):
            test, right = test.operand, False
        if isinstance(test, ast.Compare) and isinstance(_value(test.comparators[0]), (bool, int)):
            test, right = test.left, bool(_value(test.comparators[0]))
        if isinstance(test, ast.Call) and len(test.args) == 2:
            texts = [known.get(arg.id) if isinstance(arg, ast.Name) else _value(arg) for arg in test.args]
            if all(isinstance(text, str) for text in texts):
                gold, answer = reversed(texts) if ast.unparse(test.func) in _GOLD_SECOND else texts
                yield Pair(source, gold, answer, right)


def _value(node: ast.AST) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
