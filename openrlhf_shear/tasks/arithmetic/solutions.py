"""Right solutions of the built-in task, made different by fillers, and the first error of a response."""

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from openrlhf_shear.tasks.arithmetic.problems import (
    FILLERS,
    LETTERS,
    STEPS,
    ChainProblem,
    operand,
    parse_problem,
)

MAX_RESPONSE_TOKENS = 150
MOST_FILLERS = 2  # before a step
_DIGIT = re.compile("[0-9]")
_LONGEST_STEP = MOST_FILLERS + len("c-12+74=62;")
_LONGEST_END = len("#56") + 1  # with the end-of-text token


@dataclass(frozen=True)
class SolutionCheck:
    """Comparison of a response with the true chain.

    `first_error` is the index (character = token) of the first wrong character of the first wrong step, or of the final
    answer; None without an error. A response that is right but stops early errs at its end-of-text token.
    """

    correct: bool  # the response ends with the right final answer, for which the reward pays
    first_error: int | None
    miscopied: int = 0  # earlier steps with a miscopied operand and a right result: the error does not propagate

    @property
    def lucky(self) -> bool:
        """Whether the answer is right through a wrong chain."""
        return self.correct and self.first_error is not None


def max_response_tokens(operations: int = STEPS) -> int:
    """Return the token limit of a response: MAX_RESPONSE_TOKENS for the task, else scaled with the longest solution."""
    longest, longest_of_task = (n * _LONGEST_STEP + _LONGEST_END for n in (operations, STEPS))
    return math.ceil(MAX_RESPONSE_TOKENS * longest / longest_of_task)


def write_solution(problem: ChainProblem, rng: random.Random) -> str:
    """Write a right response; `rng` draws the operand orders, and at most `MOST_FILLERS` fillers before each step."""
    parts = []
    for forms in _step_forms(problem):
        parts += rng.choices(FILLERS, k=rng.randint(0, MOST_FILLERS))
        parts.append(rng.choice(forms))
    return "".join(parts) + "#" + problem.answer


def check(problem: ChainProblem | str, response: str) -> SolutionCheck:
    """Compare a response (any text, without the end-of-text token) with the true chain.

    A step is right if it has the form of this step and its result is right; any number of fillers may precede it.

    >>> check("37a+45bx7c-12d+08ex3f-31g+77=", "a37+45=82;b7x82=84;")
    SolutionCheck(correct=False, first_error=16, miscopied=0)

    >>> check("37a+45bx7c-12d+08ex3f-31g+77=", "a36+45=82;b7x82=84;")
    SolutionCheck(correct=False, first_error=16, miscopied=1)

    Raises ValueError: `problem` is a text that holds no problem. No response raises.
    """
    if isinstance(problem, str):
        problem = parse_problem(problem)
    return SolutionCheck(response.endswith("#" + problem.answer), *_first_error(problem, response))


def _step_forms(problem: ChainProblem) -> Iterator[tuple[str, str]]:
    """Yield the two right ways to write each step."""
    values = problem.values
    for letter, (sign, b), before, after in zip(LETTERS, problem.operations, values, values[1:], strict=False):
        a, b_text, result = f"{before:02d}", operand(sign, b), f"={after:02d};"
        swapped = f"-{b_text}+{a}" if sign == "-" else b_text + sign + a
        yield letter + a + sign + b_text + result, letter + swapped + result


def _first_error(problem: ChainProblem, response: str) -> tuple[int | None, int]:
    """Return the index of the first error, and the number of miscopied steps before it."""
    at = miscopied = 0
    for forms in _step_forms(problem):
        while at < len(response) and response[at] in FILLERS:
            at += 1
        matched = max(_common_prefix(response[at:], form) for form in forms)
        accepted = [form for form in forms if _same_but_for_operands(response[at : at + len(form)], form)]
        if not accepted:
            return at + matched, miscopied
        miscopied += matched < len(accepted[0])
        at += len(accepted[0])
    end = "#" + problem.answer
    matched = _common_prefix(response[at : at + len(end)], end)
    return (None if response[at:] == end else at + matched), miscopied


def _same_but_for_operands(text: str, form: str) -> bool:
    equals = form.index("=")
    return text[equals:] == form[equals:] and _DIGIT.sub("0", text[:equals]) == _DIGIT.sub("0", form[:equals])


def _common_prefix(text: str, form: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(text, form, strict=False)) if a != b), min(len(text), len(form)))
