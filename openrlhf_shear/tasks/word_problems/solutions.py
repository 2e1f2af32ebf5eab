"""Check of a free response to a word problem: each equation that it writes, and its answer.

An equation is right if it is true and its value belongs to a part of the problem's expression. A part is a sum of some
terms, or a product of some factors. For `a*b + c` the parts are a*b, a*b + c and the given numbers. The parts of the
expanded expression count too: for `a*(b + c)` a*b and a*c.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import regex as re

from openrlhf_shear.rewards.last_number import final_number
from openrlhf_shear.tasks.word_problems.problems import WordProblem

_SIGN = r"(?:[-\u2212](?=\$?[0-9.]))?+"  # touches its number: "- 40" is a point of a list
_NUMBER = rf"({_SIGN}\$?(?<![0-9.,])(?:[0-9]{{1,9}}+(?:\.[0-9]{{1,6}}+)?+|\.[0-9]{{1,6}}+))"
_UNIT = r"(?:\s*+(?!x\s*+[0-9$])[A-Za-z]{1,20}+){0,3}+"  # "3 boxes * 4 apples each = 12"
_OPERATION = r"\s*+([-+*/\u00d7\u00f7\u2212]|x(?=\s*+[0-9$]))\s*+"
_INSIDE = r"(?<![)\]0-9]\s*[-+*/\u00d7\u00f7\u2212x]\s*)"  # of a longer expression: "(6 boxes) * 7 + 5"
_EQUATION = re.compile(
    rf"{_INSIDE}(?<![0-9)\]]){_NUMBER}{_UNIT}(?:{_OPERATION}{_NUMBER}{_UNIT}){{1,6}}+\s*+=\s*+{_NUMBER}"
)
_LEADING_ZEROS = re.compile(r"(?<![0-9.])0++(?=[0-9])")  # which sympy does not read
_SIGNS = {"\u00d7": "*", "x": "*", "\u00f7": "/", "\u2212": "-"}


@dataclass(frozen=True)
class EquationCheck:
    """Result of a check."""

    correct: bool  # whether the final number is the answer
    error: int | None  # the first wrong character; the text's length where an answer is missing; None without an error

    @property
    def lucky(self) -> bool:
        """Whether the answer is right in spite of an error."""
        return self.correct and self.error is not None


def check(problem: WordProblem, response: str) -> EquationCheck:
    """Check a response. A false equation errs at its result, a true one that does not fit at its first operator."""
    answer = final_number(response)
    correct = answer is not None and answer == problem.answer
    wrong = next(_wrong(problem, response), None)
    if wrong is None and not correct:
        wrong = len(response) if answer is None else _last(response)
    return EquationCheck(correct, wrong)


@cache
def values(problem: WordProblem) -> frozenset:
    """Return the values of all parts of the problem's expression, as sympy's rationals."""
    import sympy  # late: it takes half a second

    symbols = {name: sympy.Symbol(name) for name, _ in problem.numbers}
    numbers = {symbols[name]: value for name, value in problem.numbers}
    found = set()
    expression = sympy.sympify(problem.expression, locals=symbols)
    for node in (*sympy.preorder_traversal(expression), *sympy.preorder_traversal(sympy.expand(expression))):
        parts = [node]
        if node.func in (sympy.Add, sympy.Mul):
            sizes = range(1, len(node.args) + 1)
            parts = [node.func(*some) for size in sizes for some in combinations(node.args, size)]
        found |= {part.subs(numbers) for part in parts}
    return frozenset(found)


def _wrong(problem: WordProblem, response: str) -> Iterator[int]:
    """Yield the error of each wrong equation, in order."""
    for equation in _EQUATION.finditer(response):
        operators = [_SIGNS.get(sign, sign) for sign in equation.captures(2)]
        rest = "".join(a + b for a, b in zip(operators, equation.captures(3), strict=True))
        # A sign of the first number may also be a point of a list.
        lefts = [equation[1] + rest, equation[1].lstrip("-\u2212") + rest]
        result = _value(equation[4])
        value_of_left = next((value for value in map(_value, lefts) if value == result), None)
        if value_of_left is None:
            yield _digits(equation, 4)
        elif value_of_left not in values(problem):
            yield equation.starts(2)[0]


def _value(text: str):
    """Return the value of numbers and operators, as sympy's rational."""
    import sympy

    return sympy.sympify(_LEADING_ZEROS.sub("", text.replace("$", "").replace("\u2212", "-")), rational=True)


def _last(response: str) -> int:
    """Return where the last number begins."""
    numbers = [_digits(number, 1) for number in re.finditer(_NUMBER, response)]
    return (numbers or [digits.start() for digits in re.finditer("[0-9]++", response)])[-1]  # "...5" is an answer, too


def _digits(number, group: int) -> int:
    """Return where the digits of a matched number begin."""
    return number.end(group) - len(number[group].lstrip("-\u2212$"))
