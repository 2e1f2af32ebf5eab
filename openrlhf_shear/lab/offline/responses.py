"""Responses as steps, with the first wrong step that a human marked, and their groups by problem.

A row of a file has the columns `problem`, `steps`, `correct` and `label`. The steps are a list of texts. `correct` says
whether the final answer is right. The label is the index of the first wrong step, -1 if no step is wrong; it is unknown
if it is null or missing. Two published forms are read too:

- ProcessBench (Zheng et al. 2024, arXiv:2412.06559) has `final_answer_correct` in place of `correct`.
- OpenAI's grade-school-math has `question`, `ground_truth`, and objects of `solution` and `is_correct`. Its steps are
  lines, and have no labels. The ground truth is a further right response.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import regex as re

from openrlhf_shear.data.checks import normalized
from openrlhf_shear.data.files import DataError, open_rows

SEPARATOR = "\n\n"  # between steps, as ProcessBench's authors show them to models
NO_ERROR = -1
_RESULT = re.compile(r"=[\s$\\]*([0-9]+)")  # a whole number, or the beginning of a number, behind an equals sign
_OUTCOMES = ("correct", "final_answer_correct")
_CALCULATOR = re.compile(r"<<[^<>]*>>")  # annotations of grade-school-math: <<16-3=13>>13
_FORM = "use problem, steps, correct and label, or the rows of ProcessBench or grade-school-math"


@dataclass(frozen=True)
class Response:
    """A response to a problem."""

    problem: str
    steps: tuple[str, ...]
    correct: bool  # whether its final answer is right
    label: int | None  # index of the first wrong step; `NO_ERROR` if none is wrong; None if unknown

    @property
    def text(self) -> str:
        return SEPARATOR.join(self.steps)

    @property
    def step_starts(self) -> list[int]:
        """The first character of each step in `text`.

        >>> Response("1 + 1?", ("1 + 1", "is 2"), True, NO_ERROR).step_starts
        [0, 7]
        """
        return list(accumulate((len(step) + len(SEPARATOR) for step in self.steps[:-1]), initial=0))

    @property
    def is_marked(self) -> bool:
        """Whether it is wrong, and its first wrong step is known."""
        return not self.correct and self.label is not None and self.label != NO_ERROR

    @property
    def is_clean(self) -> bool:
        """Whether it is right, and no step is known to be wrong."""
        return self.correct and self.label in (None, NO_ERROR)


@dataclass(frozen=True)
class ResponseGroup:
    """Responses to one problem."""

    problem: int  # number of the problem, the same in every group of this problem
    responses: tuple[Response, ...]

    @property
    def is_mixed(self) -> bool:
        """Whether the group has both outcomes."""
        return len({response.correct for response in self.responses}) == 2


def read_responses(files: Iterable[str]) -> list[Response]:
    """Return the responses of files, in order.

    Raises DataError: a file cannot be used, or a row lacks a column or has a value of another kind.
    """
    responses = []
    for file in files:
        for number, row in enumerate(open_rows(file).rows, 1):
            try:
                responses += _of_row(row)
            except ValueError as error:
                raise DataError(f"{file}: row {number} {error}; {_FORM}") from error
    return responses


def by_problem(responses: Iterable[Response]) -> list[ResponseGroup]:
    """Return a group for each problem, in the order of first appearance; white space and case do not count."""
    found: dict[str, list[Response]] = {}
    for response in responses:
        found.setdefault(normalized(response.problem), []).append(response)
    return [ResponseGroup(number, tuple(members)) for number, members in enumerate(found.values())]


def comparable(groups: Sequence[ResponseGroup], limit: int | None = None, least: int = 2) -> list[ResponseGroup]:
    """Return the first `limit` groups with both outcomes and a wrong response that goes wrong after its first step.

    Args:
        least: responses of a group; a permuted control needs three.

    Raises ValueError: there is no such group.
    """
    usable = [g for g in groups if g.is_mixed and any(each.is_marked and each.label > 0 for each in g.responses)]
    usable = [group for group in usable if len(group.responses) >= least]
    if not usable:
        many = f" with {least} responses" if least > 2 else ""
        instead = ", or use /shuffled in place of /permuted" if least > 2 else ""
        raise ValueError(
            f"--responses: none of {len(groups)} problems{many} has both a right response and a wrong response that "
            f"goes wrong after its first step; add files with more responses to the same problems{instead}"
        )
    return usable[:limit]


def _of_row(row: Mapping[str, Any]) -> Iterator[Response]:
    if "question" in row and "ground_truth" in row:
        yield from _grade_school(row)
        return
    outcome = next((name for name in _OUTCOMES if name in row), None)
    missing = [name for name in ("problem", "steps") if name not in row] + ([] if outcome else [_OUTCOMES[0]])
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}")
    steps, correct, label = row["steps"], row[outcome], row.get("label")
    if not (isinstance(steps, list) and steps and all(isinstance(step, str) and step.strip() for step in steps)):
        raise ValueError("has steps that are no list of texts, or an empty step")
    if not isinstance(row["problem"], str) or not isinstance(correct, bool):
        raise ValueError(f"has a problem that is no text, or {outcome} that is not true or false")
    if label is not None and (type(label) is not int or not NO_ERROR <= label < len(steps)):
        raise ValueError(f"has label {label!r}, which is no index of its {len(steps)} steps, nor {NO_ERROR}")
    yield Response(row["problem"], tuple(steps), correct, label)


def _grade_school(row: Mapping[str, Any]) -> Iterator[Response]:
    solutions = [(row["ground_truth"], True)]
    for value in row.values():
        if isinstance(value, dict):
            if not {"solution", "is_correct"} <= value.keys():
                raise ValueError("has an object without solution and is_correct")
            solutions.append((value["solution"], value["is_correct"]))
    for text, correct in solutions:
        if not isinstance(text, str) or not isinstance(correct, bool):
            raise ValueError("has a solution that is no text, or is_correct that is not true or false")
        lines = _CALCULATOR.sub("", text).split("\n")
        if steps := tuple(line.strip() for line in lines if line.strip()):
            yield Response(row["question"], steps, correct, None)


@dataclass(frozen=True)
class Planted:
    """A right response of a group, and the same response with a changed number."""

    group: ResponseGroup
    at: int  # index of the right response in the group
    changed: Response


def changed(response: Response, rng: random.Random) -> Response | None:
    """Return the response with another number in one step, called wrong; None if no step can be changed.

    The step is drawn from those that have a number behind an equals sign, except the first step, which has nothing
    before it. One such number of the step gets other digits, as many as before.
    """
    places = [i for i, step in enumerate(response.steps) if i and _RESULT.search(step)]
    if not places:
        return None
    at = rng.choice(places)
    step = response.steps[at]
    start, end = rng.choice([match.span(1) for match in _RESULT.finditer(step)])
    steps = list(response.steps)
    steps[at] = step[:start] + _other(step[start:end], rng) + step[end:]
    return replace(response, steps=tuple(steps), correct=False, label=at)


def planted(groups: Sequence[ResponseGroup], seed: int, limit: int) -> list[Planted]:
    """Return a pair for each right response without a wrong step whose problem has another right response.

    Only the responses of the first `limit` problems with a pair are used.
    """
    pairs: list[Planted] = []
    problems: set[int] = set()
    for group in groups:
        if len(problems) == limit:
            break
        right = [i for i, response in enumerate(group.responses) if response.correct]
        for i in (i for i in right if group.responses[i].label == NO_ERROR and len(right) > 1):
            response = group.responses[i]
            wrong = changed(response, random.Random(f"{seed}:{response.problem}:{response.text}"))
            if wrong is not None:
                pairs.append(Planted(group, i, wrong))
                problems.add(group.problem)
    return pairs


def _other(digits: str, rng: random.Random) -> str:
    """Return another number of as many digits, without a leading zero unless it has one digit."""
    low, high = (0, 9) if len(digits) == 1 else (10 ** (len(digits) - 1), 10 ** len(digits) - 1)
    drawn = digits
    while drawn == digits:
        drawn = str(rng.randint(low, high))
    return drawn
