"""Data sets to train on. A `Source` names the columns of prompt and label, and reads the label."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from openrlhf_shear.data.columns import object_of, value_at
from openrlhf_shear.data.prompts import WRITTEN
from openrlhf_shear.rewards.labels import golds_of
from openrlhf_shear.rewards.maths.grader import STEP_BY_STEP


@dataclass(frozen=True)
class ReadProblem:
    """A problem: its prompt, and the label that its reward gets."""

    prompt: str
    label: str  # a gold answer, a JSON list of equivalent gold answers, or the JSON object of a program's tests
    kind: str  # of the label: "answer", or "stdin", "function" or "assert" tests


class Dropped(Exception):
    """A row is not used for training; `reason` is a word to count by, `detail` describes this row."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Source:
    """Columns of a data set, and how to make problems from its rows."""

    prompt_key: str | None  # column of the problem: a text, or chat messages with a single user turn
    label_key: str | None
    label: Callable[[Any], tuple[str, str]]  # (label text, kind) of that column's value; raises `Dropped`
    hub: str | None = None  # hub id to read when the user names no input
    configs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by hub id, if it has no default config
    system: str | None = None  # system turn of the prompts
    only: tuple[str, str] | None = None  # (column, value) of the rows to take
    level_key: str | None = None  # column of the difficulty, e.g. "Level 3"
    levels: range | None = None  # levels to take; None for all

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that a row must have."""
        return (self.prompt_key, self.label_key, *(self.only or ())[:1], *([self.level_key] if self.levels else []))

    def problem(self, row: Mapping[str, Any]) -> ReadProblem:
        """Return the problem of a row. Raises Dropped: the row has none; the functions below give the reasons."""
        if self.only and row.get(self.only[0]) != self.only[1]:
            raise Dropped(f"not_{self.only[1]}", f"{self.only[0]} is {row.get(self.only[0])!r}")
        if self.levels and _level(row.get(self.level_key)) not in self.levels:
            raise Dropped("other_level", f"{self.level_key} is {row.get(self.level_key)!r}")
        return ReadProblem(prompt_text(value_at(row, self.prompt_key)), *self.label(value_at(row, self.label_key)))


def _level(value: object) -> int | None:
    """Return the level that a value names, if any.

    >>> _level("Level 3"), _level(4), _level("Level ?")
    (3, 4, None)
    """
    number = str(value).removeprefix("Level ")
    return int(number) if number.isdecimal() else None


def messages(problem: ReadProblem, system: str | None) -> list[dict[str, str]]:
    """Return the chat to which OpenRLHF applies the model's template (`--data.apply_chat_template`)."""
    turns = [{"role": "system", "content": system}] if system else []
    return [*turns, {"role": "user", "content": problem.prompt}]


def prompt_text(value: object) -> str:
    """Return the question in a prompt column.

    Raises Dropped: "empty_prompt", or "not_one_turn" for messages other than system turns and one user turn, and for
    messages written as a text.
    """
    if isinstance(value, list):
        turns = [turn for turn in value if not (isinstance(turn, dict) and turn.get("role") == "system")]
        roles = [turn.get("role") if isinstance(turn, dict) else type(turn).__name__ for turn in turns]
        if roles != ["user"]:
            raise Dropped("not_one_turn", f"turns: {roles}")
        value = turns[0].get("content")
    if not isinstance(value, str) or not value.strip():
        raise Dropped("empty_prompt", "" if isinstance(value, str) else f"the prompt is {type(value).__name__}")
    if WRITTEN.match(value):
        raise Dropped("not_one_turn", f"messages written as a text: {value[:80]}")
    return value.strip()


def boxed(solution: object) -> tuple[str, str]:
    r"""Return the last \boxed{...} of a worked solution; drop, as "no_answer", a solution without a short one."""
    from openrlhf_shear.rewards.maths.answers import final_answer

    text = solution if isinstance(solution, str) else ""
    answer, problem = final_answer(text) if r"\boxed" in text or r"\fbox" in text else (None, "no box")
    return _answer("" if problem else answer, text)


def hashed(solution: object) -> tuple[str, str]:
    """Return the text after the last `####` of a worked solution, without thousands separators; else "no_answer"."""
    text = solution if isinstance(solution, str) else ""
    return _answer(text.rpartition("####")[2].strip().replace(",", "") if "####" in text else "", text)


def _answer(answer: str, text: str) -> tuple[str, str]:
    if not answer:
        raise Dropped("no_answer", f"the solution ends with {text[-80:]!r}")
    return answer, "answer"


def ground_truth(reward_model: object) -> tuple[str, str]:
    """Return the tests in an Eurus row's `reward_model`; drop, as "bad_tests", a row without tests."""
    if not isinstance(reward_model, dict) or not reward_model.get("ground_truth"):
        raise Dropped("bad_tests", "reward_model has no ground_truth")
    return tests(object_of(reward_model["ground_truth"]))


def label(value: object) -> tuple[str, str]:
    """Return a label of any kind: an object, or its JSON or Python text, holds tests; all else is a gold answer.

    Raises Dropped: "no_answer" for a value that `golds_of` refuses; "bad_tests" for an object without known tests.
    """
    if isinstance(value, dict) or (isinstance(value, str) and value.lstrip().startswith("{")):
        written = object_of(value)
        if written is not None:
            return tests(written)
    try:
        golds = golds_of(value)
    except ValueError as error:
        raise Dropped("no_answer", str(error)) from error
    golds = [gold.strip() for gold in ([golds] if isinstance(golds, str) else golds)]
    return golds[0] if len(golds) == 1 else json.dumps(golds), "answer"


def tests(written: dict | None) -> tuple[str, str]:
    """Return tests as the JSON text that `grade_code` reads; drop, as "bad_tests", tests that it would refuse."""
    from openrlhf_shear.rewards.code.tests import AssertTests, FunctionTests, StdinTests, tests_of

    kinds = {StdinTests: "stdin", FunctionTests: "function", AssertTests: "assert"}
    # In a parquet column of objects of several forms, the keys of the other forms are null.
    present = {name: value for name, value in (written or {}).items() if value is not None}
    try:
        text = json.dumps(present)
        return text, kinds[type(tests_of(text))]
    except (TypeError, ValueError) as error:
        raise Dropped("bad_tests", str(error)) from error


MATH_SUBJECTS = ("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory",
                 "prealgebra", "precalculus")  # fmt: skip
MATH_HUB = "DigitalLearningGmbH/MATH-lighteval"
SOURCES = {
    "math": Source(
        "problem",
        "solution",
        boxed,
        MATH_HUB,
        {"EleutherAI/hendrycks_math": MATH_SUBJECTS},
        STEP_BY_STEP,
        level_key="level",
    ),
    "gsm8k": Source("question", "answer", hashed, "openai/gsm8k", {"openai/gsm8k": ("main",)}, STEP_BY_STEP),
    # The data set's system turn, a page of instructions for another reasoning format, is left out.
    "eurus-code": Source(
        "prompt", "reward_model", ground_truth, hub="PRIME-RL/Eurus-2-RL-Data", only=("ability", "code")
    ),
    "columns": Source(None, None, label),
}
