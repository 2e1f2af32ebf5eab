"""What an evaluation asks, samples and finds: questions, completions, verdicts; one JSON object a line in its files."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Question:
    """One problem of a benchmark.

    Attributes:
        id: unique in its benchmark, and the same in every run.
        messages: chat turns, {"role", "content"}, for the model's template.
        label: what the grader is told: a gold answer, a JSON list of equivalent ones, or the JSON of a program's tests.
        tolerance: accept a number within this distance of the gold; None for exactly the gold.
    """

    benchmark: str
    id: str
    messages: list[dict[str, str]]
    label: str
    tolerance: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What a grader says of one completion.

    Attributes:
        correct: None where no grade could be made (`failure` says why): such a completion is no zero.
        reason: of what is not correct, by the grader: "wrong", "no_answer", "timeout", "wrong_answer", ...
        failure: why there is no grade, e.g. "the model's engine died", "grader raised ValueError".
        answer: the final answer found, of mathematics.
        lenient: correct by the lenient score that many published tables use, of mathematics; never a reward.
    """

    correct: bool | None
    reason: str | None = None
    failure: str | None = None
    answer: str | None = None
    lenient: bool | None = None


@dataclass(frozen=True)
class Completion:
    """One sampled answer; `sample` counts from 0 to k - 1."""

    benchmark: str
    question: str  # its id
    sample: int
    response: str
    tokens: int
    truncated: bool  # it ended at the token limit
    verdict: Verdict | None = None  # not graded yet

    @property
    def key(self) -> tuple[str, str, int]:
        return self.benchmark, self.question, self.sample

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict) -> Completion:
        verdict = row.get("verdict")
        return cls(**{**row, "verdict": None if verdict is None else Verdict(**verdict)})
