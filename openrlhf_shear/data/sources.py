"""Data sets to train on, each a `Source`: which columns hold prompt and label, and how the label is read."""

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from openrlhf_shear.rewards.labels import golds_of

STEP_BY_STEP = r"Please reason step by step, and put your final answer within \boxed{}."


@dataclass(frozen=True)
class Problem:
    """One problem: what is asked, and what its reward is told."""

    prompt: str
    label: str  # a gold answer, a JSON list of equivalent ones, or the JSON object of a program's tests
    kind: str  # which of these: "answer", or "stdin", "function" or "assert" tests


class Dropped(Exception):
    """A row that is not trained on; `reason` is a word to count by, `detail` is of this row."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Source:
    prompt_key: str | None  # column of the problem: a text, or chat messages of which the one user turn is taken
    label_key: str | None
    label: Callable[[Any], tuple[str, str]]  # (label text, kind) of that column's value; raises `Dropped`
    hub: str | None = None  # id on the hub, for when no other input is named
    configs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of hub ids that have no default one
    system: str | None = None  # the system turn of its prompts
    only: tuple[str, str] | None = None  # (column, value) of the rows to take
    level_key: str | None = None  # column of how hard a problem is, "Level 3"
    levels: range | None = None  # the levels to take; None for all

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns a row must have."""
        return (self.prompt_key, self.label_key, *(self.only or ())[:1], *([self.level_key] if self.levels else []))

    def problem(self, row: Mapping[str, Any]) -> Problem:
        """The problem of one row. Raises Dropped: the row has none; see the functions below for the reasons."""
        if self.only and row.get(self.only[0]) != self.only[1]:
            raise Dropped(f"not_{self.only[1]}", f"{self.only[0]} is {row.get(self.only[0])!r}")
        if self.levels and _level(row.get(self.level_key)) not in self.levels:
            raise Dropped("other_level", f"{self.level_key} is {row.get(self.level_key)!r}")
        return Problem(prompt_text(row.get(self.prompt_key)), *self.label(row.get(self.label_key)))


def _level(value: object) -> int | None:
    """
    >>> _level("Level 3"), _level(4), _level("Level ?")
    (3, 4, None)
    """
    number = str(value).removeprefix("Level ")
    return int(number) if number.isdecimal() else None


def messages(problem: Problem, system: str | None) -> list[dict[str, str]]:
    """The chat that OpenRLHF puts through the model's template (`--data.apply_chat_template`)."""
    turns = [{"role": "system", "content": system}] if system else []
    return [*turns, {"role": "user", "content": problem.prompt}]


def prompt_text(value: object) -> str:
    """The question of a prompt column. Raises Dropped: "empty_prompt", or "not_one_turn" for messages that are not one
    user turn, after system turns at most.
    """
    if isinstance(value, list):
        turns = [turn for turn in value if not (isinstance(turn, dict) and turn.get("role") == "system")]
        roles = [turn.get("role") if isinstance(turn, dict) else type(turn).__name__ for turn in turns]
        if roles != ["user"]:
            raise Dropped("not_one_turn", f"turns: {roles}")
        value = turns[0].get("content")
    if not isinstance(value, str) or not value.strip():
        raise Dropped("empty_prompt", "" if isinstance(value, str) else f"the prompt is {type(value).__name__}")
    return value.strip()


def boxed(solution: object) -> tuple[str, str]:
    r"""The last \boxed{...} of a worked solution; "no_answer" where there is none, or nothing short in it."""
    from openrlhf_shear.rewards.maths.text import final_answer

    text = solution if isinstance(solution, str) else ""
    answer, problem = final_answer(text) if r"\boxed" in text or r"\fbox" in text else (None, "no box")
    return _answer("" if problem else answer, text)


def hashed(solution: object) -> tuple[str, str]:
    """What follows the last `####` of a worked solution, without thousands separators; else "no_answer"."""
    text = solution if isinstance(solution, str) else ""
    return _answer(text.rpartition("####")[2].strip().replace(",", "") if "####" in text else "", text)


def _answer(answer: str, text: str) -> tuple[str, str]:
    if not answer:
        raise Dropped("no_answer", f"the solution ends with {text[-80:]!r}")
    return answer, "answer"


def ground_truth(reward_model: object) -> tuple[str, str]:
    """The tests in an Eurus row's `reward_model`; "bad_tests" where there are none."""
    if not isinstance(reward_model, dict) or not reward_model.get("ground_truth"):
        raise Dropped("bad_tests", "reward_model has no ground_truth")
    return tests(_object(reward_model["ground_truth"]))


def label(value: object) -> tuple[str, str]:
    """A label of any kind: an object, or its JSON or Python text, holds tests; all else is a gold answer.
    Raises Dropped: "no_answer" for what `golds_of` refuses; "bad_tests" for an object that is no tests of a known form.
    """
    if isinstance(value, dict) or (isinstance(value, str) and value.lstrip().startswith("{")):
        written = _object(value)
        if written is not None:
            return tests(written)
    try:
        golds = golds_of(value)
    except ValueError as error:
        raise Dropped("no_answer", str(error)) from error
    golds = [gold.strip() for gold in ([golds] if isinstance(golds, str) else golds)]
    return golds[0] if len(golds) == 1 else json.dumps(golds), "answer"


def tests(given: dict | None) -> tuple[str, str]:
    """Tests as the JSON text that `grade_code` reads; "bad_tests" where it would refuse them."""
    from openrlhf_shear.rewards.code.tests import AssertTests, FunctionTests, StdinTests, tests_of

    kinds = {StdinTests: "stdin", FunctionTests: "function", AssertTests: "assert"}
    # A column of objects of several forms has, in parquet, null for what a row's form does not have.
    kept = {name: value for name, value in (given or {}).items() if value is not None}
    try:
        text = json.dumps(kept)
        return text, kinds[type(tests_of(text))]
    except (TypeError, ValueError) as error:
        raise Dropped("bad_tests", str(error)) from error


def _object(value: object) -> dict | None:
    """The object of a JSON or Python text, or itself; None where it is not one."""
    if isinstance(value, str):
        for read in (json.loads, ast.literal_eval):
            try:
                value = read(value)
                break
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return value if isinstance(value, dict) else None


MATH_SUBJECTS = ("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory",
                 "prealgebra", "precalculus")  # fmt: skip
MATH_HUB = "DigitalLearningGmbH/MATH-lighteval"
SOURCES = {
    "math": Source(
        *("problem", "solution", boxed, MATH_HUB),
        *({"EleutherAI/hendrycks_math": MATH_SUBJECTS}, STEP_BY_STEP),
        level_key="level",
    ),
    "gsm8k": Source("question", "answer", hashed, "openai/gsm8k", {"openai/gsm8k": ("main",)}, STEP_BY_STEP),
    # Its own system turn, a page of instructions for another reasoning format, is left out.
    "eurus-code": Source(
        "prompt", "reward_model", ground_truth, hub="PRIME-RL/Eurus-2-RL-Data", only=("ability", "code")
    ),
    "columns": Source(None, None, label),
}
