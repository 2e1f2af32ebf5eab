"""Questions, completions and verdicts of an evaluation; one JSON object a line in its files."""

from dataclasses import asdict, dataclass
from typing import Self

from openrlhf_shear.rewards.verdict import Verdict, of_texts


@dataclass(frozen=True)
class Question:
    """A problem of a benchmark."""

    benchmark: str
    id: str  # unique in its benchmark, and the same in every run
    messages: list[dict[str, str]]  # chat turns, {"role", "content"}, for the model's template
    # what the grader reads: a gold answer, a JSON list of equivalent ones, or the JSON of a program's tests; for a
    # reward_func any JSON value
    label: object
    tolerance: float | None = None  # accept a number within this distance of the gold; None for exactly the gold
    # tokens that the answer begins with; a completion's response includes them, its `tokens` do not
    prefix: list[int] | None = None


@dataclass(frozen=True)
class Completion:
    """A sampled answer; `sample` counts from 0 to k - 1."""

    benchmark: str
    question: str  # its id
    sample: int
    response: str
    tokens: int
    truncated: bool  # whether it ended at the token limit
    verdict: Verdict | None = None  # None before grading
    token_ids: list[int] | None = None  # where requested; the response is their text without special tokens

    @property
    def failed(self) -> bool:
        """Whether grading failed to judge its correctness; False before grading."""
        return self.verdict is not None and self.verdict.failure is not None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.benchmark, self.question, self.sample

    def to_json(self) -> dict:
        return asdict(self) | {"verdict": self.verdict and _row(self.verdict)}

    @classmethod
    def from_json(cls, row: dict) -> Self:
        verdict = row.get("verdict")
        return cls(**{**row, "verdict": None if verdict is None else of_texts(**verdict)})


def _row(verdict: Verdict) -> dict:
    """Return what the files have of a verdict. Older and newer versions read its reason or failure as text."""
    failed = verdict.failure is not None
    texts = {"reason": None if failed else verdict.why, "failure": verdict.why if failed else None}
    return {"correct": verdict.correct, **texts, "answer": verdict.answer, "lenient": verdict.lenient}
