"""Word problems as a task of the lab (`lab.tasks`), for a pretrained model such as SmolLM2-135M-Instruct."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from openrlhf_shear.tasks.situation import LOST, Situation
from openrlhf_shear.tasks.word_problems.problems import WordProblem, make_problems
from openrlhf_shear.tasks.word_problems.solutions import check


@dataclass(frozen=True)
class TokenCheck:
    """Check of a response, with the first error as a token."""

    correct: bool
    first_error: int | None  # index of the first wrong token, at most T_i; None without an error
    lucky: bool


class WordProblemsTask:
    """The lab's task of word problems."""

    place = policy_place = "word_problems"
    about = "word problems"
    warm_up_command = "openrlhf_shear.cli.make_smollm2"
    budget = 64  # a solution of two steps has about 35 tokens
    long_responses = False

    def problems(self, n: int, seed: int, split: str = "train") -> list[WordProblem]:
        return make_problems(n, seed, split)

    def check(self, tokenizer, problem: WordProblem, ids) -> TokenCheck:
        ids = [int(i) for i in ids]
        result = check(problem, tokenizer.decode(ids, skip_special_tokens=True))
        error = None if result.error is None else _token_at(tokenizer, ids, result.error)
        return TokenCheck(result.correct, error, result.lucky)

    def situations(self, tokenizer, problem: WordProblem, ids) -> list[Situation]:
        return [LOST] * (len(ids) + 1)  # words are free, so only continuations tell a prefix's value

    def written(self, problem: WordProblem, rng: random.Random) -> str:
        return problem.row["answer"]

    def shipped(self) -> Path:
        raise ValueError(
            f"lab.start: word problems have no shipped policy; use --start with a chat model's folder, e.g. the folder "
            f"policy of: python -m {self.warm_up_command} --out DIR"
        )

    def warm_up(self, accuracy: float, report: Callable[[str], None]):
        return self.shipped()  # the same refusal: a pretrained model is not warmed up here


def _token_at(tokenizer, ids: list[int], character: int) -> int:
    """Return the token that holds a character of the decoded text; the number of tokens beyond its end."""
    for i in range(len(ids)):
        if len(tokenizer.decode(ids[: i + 1], skip_special_tokens=True)) > character:
            return i
    return len(ids)
