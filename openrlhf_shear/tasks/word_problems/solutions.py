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

_NUMBER = r"\$?(?<![0-9.,])([0-9]{1,9}+(?:\.[0-9]{1,6}+)?+|\.[0-9]{1,6}+)"
_UNIT = r"(?:\s*+(?!x\s*+[0-9$])[A-Za-z]{1,20}+){0,3}+"  # "3 boxes * 4 apples each = 12"
_OPERATION = r"\s*+([-+*/\u00d7\u00f7\u2212]|x(?=\s*+[0-9$]))\s*+"
_EQUATION = re.compile(rf"{_NUMBER}{_UNIT}(?:{_OPERATION}{_NUMBER}{_UNIT}){{1,6}}+\s*+=\s*+{_NUMBER}")
_LEADING_ZEROS = re.compile(r"(?<![0-9.])0++(?=[0-9])")  # which sympy does not read
_SIGNS = {"\u00d7": "*", "x": "*", "\u00f7": "/", "\u2212": "-"}


@dataclass(frozen=True)
class Check:
    """Result of a check."""

    correct: bool  # whether the final number is the answer
    error: int | None  # the first wrong character; the text's length where an answer is missing; None without an error

    @property
    def lucky(self) -> bool:
        """Whether the answer is right in spite of an error."""
        return self.correct and self.error is not None


def check(problem: WordProblem, response: str) -> Check:
    """Check a response. A false equation errs at its result, a true one that does not fit at its first operator."""
    answer = final_number(response)
    correct = answer is not None and answer == problem.answer
    wrong = next(_wrong(problem, response), None)
    if wrong is None and not correct:
        wrong = len(response) if answer is None else _last(response)
    return Check(correct, wrong)


@cache
def values(problem: WordProblem) -> frozenset:
    """Return the values of all parts of the problem's expression, as sympy's rationals."""
    import sympy  # late: it takes half a second

    symbols = {name: sympy.Symbol(name) for name, _ in problem.numbers}
    given = {symbols[name]: value for name, value in problem.numbers}
    found = set()
    expression = sympy.sympify(problem.expression, locals=symbols)
    for node in (*sympy.preorder_traversal(expression), *sympy.preorder_traversal(sympy.expand(expression))):
        parts = [node]
        if node.func in (sympy.Add, sympy.Mul):
            sizes = range(1, len(node.args) + 1)
            parts = [node.func(*some) for size in sizes for some in combinations(node.args, size)]
        found |= {part.subs(given) for part in parts}
    return frozenset(found)


def _wrong(problem: WordProblem, response: str) -> Iterator[int]:
    """Yield the error of each wrong equation, in order."""
    import sympy

    for equation in _EQUATION.finditer(response):
        numbers = [*equation.captures(1), *equation.captures(3)]
        operators = [_SIGNS.get(sign, sign) for sign in equation.captures(2)]
        text = numbers[0] + "".join(a + b for a, b in zip(operators, numbers[1:], strict=True))
        made, said = (sympy.sympify(_LEADING_ZEROS.sub("", part), rational=True) for part in (text, equation[4]))
        if made != said:
            yield equation.start(4)
        elif made not in values(problem):
            yield equation.starts(2)[0]


def _last(response: str) -> int:
    """Return where the last number begins."""
    return [number.start(1) for number in re.finditer(_NUMBER, response)][-1]
