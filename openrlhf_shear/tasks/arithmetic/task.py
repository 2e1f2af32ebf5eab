"""Chain arithmetic as a task of the lab (`lab.tasks`)."""

import random
import re
from dataclasses import dataclass
from pathlib import Path

from openrlhf_shear.tasks.arithmetic.problems import (
    FILLERS,
    LETTERS,
    POLICY_DIR,
    STEPS,
    ChainProblem,
    make_problems,
    operand,
)
from openrlhf_shear.tasks.arithmetic.sampling import response_text
from openrlhf_shear.tasks.arithmetic.solutions import SolutionCheck, check, max_response_tokens, write_solution
from openrlhf_shear.tasks.situation import LOST, Situation


def situations(problem: ChainProblem, text: str) -> list[Situation]:
    """Return the situation before each character and after the last (`len(text) + 1`).

    All that follows a finished step depends on the value that the step wrote, right or wrong; no value is wrong for
    good, as a later step may err back. Fillers and the order of operands decide nothing; a result's first digit does.

    The key is the number of finished steps and the value of the last, with the first digit of a result at which the
    text has arrived. Miscopied operands lose the thread until the step's result; any other text loses it for good.
    """
    step, value, partial = 0, problem.start, ""
    found = [Situation((step, value))]
    for sign in text:
        if partial or sign not in FILLERS or step == len(problem.operations):
            partial += sign
            situation = _within(problem, step, value, partial)
            if situation is None:
                break
        else:
            situation = Situation((step, value))
        found.append(situation)
        if partial.endswith(";"):
            (step, value), partial = situation.key, ""
    return found + [LOST] * (len(text) + 1 - len(found))


def _within(problem: ChainProblem, step: int, value: int, partial: str) -> Situation | None:
    """Return the situation in a step, or in the answer, from its text so far; None where the text is neither."""
    if step == len(problem.operations):
        return Situation((step, value)) if f"#{value:02d}".startswith(partial) else None
    form = re.fullmatch(LETTERS[step] + r"([-+x\d]*)(?:=(\d\d;|\d{0,2}))?", partial)
    if form is None:
        return None
    operands, result = form.groups()
    sign, number = problem.operations[step]
    a, b = f"{value:02d}", operand(sign, number)
    copies = a + sign + b, f"-{b}+{a}" if sign == "-" else b + sign + a
    if result and len(result) > 1:
        return Situation((step + 1, int(result[:2])))
    if not (operands in copies if result is not None else any(copy.startswith(operands) for copy in copies)):
        return LOST
    return Situation((step, value, result) if result else (step, value))


@dataclass(frozen=True)
class ArithmeticTask:
    """The lab's task of problems with `operations`."""

    operations: int = STEPS
    long_responses = False

    @property
    def place(self) -> str:
        return f"operations{self.operations}"

    @property
    def about(self) -> str:
        return f"{self.operations} operations"

    @property
    def budget(self) -> int:
        return max_response_tokens(self.operations)

    def problems(self, n: int, seed: int, split: str = "train") -> list[ChainProblem]:
        return make_problems(n, seed, split, self.operations)

    def check(self, tokenizer, problem: ChainProblem, ids) -> SolutionCheck:
        return check(problem, response_text(tokenizer, ids))

    def situations(self, tokenizer, problem: ChainProblem, ids) -> list[Situation]:
        return situations(problem, response_text(tokenizer, ids))

    def written(self, problem: ChainProblem, rng: random.Random) -> str:
        return write_solution(problem, rng)

    def shipped(self) -> Path:
        if self.operations != STEPS:
            raise ValueError(
                f"lab.start: the shipped policy knows {STEPS} operations: got {self.operations}; use --start "
                f"and a folder from python -m openrlhf_shear.cli.warm_up"
            )
        return POLICY_DIR
