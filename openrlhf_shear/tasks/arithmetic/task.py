"""Chain arithmetic as a task of the lab (`lab.tasks`)."""

import random
from dataclasses import dataclass
from pathlib import Path

from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR, STEPS, ChainProblem, make_problems
from openrlhf_shear.tasks.arithmetic.sampling import response_text
from openrlhf_shear.tasks.arithmetic.situations import situations
from openrlhf_shear.tasks.arithmetic.solutions import SolutionCheck, check, max_response_tokens, write_solution
from openrlhf_shear.tasks.situation import Situation


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
