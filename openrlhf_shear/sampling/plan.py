"""What is asked of a model, and how its answers are graded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from openrlhf_shear.sampling.records import Question
from openrlhf_shear.sampling.sampler import Sampling


@dataclass(frozen=True)
class Plan:
    """What an evaluation asks.

    Attributes:
        tasks, ks: by benchmark, in the order of the results: "math", "code" or a reward file; completions a problem.
        token_ids: keep the tokens of completions too.
        more: JSON values by name that a resume must have in common, too.
    """

    model: str
    questions: Sequence[Question]
    tasks: Mapping[str, str]
    ks: Mapping[str, int]
    sampling: Sampling
    chat: bool = True
    max_model_len: int | None = None  # tokens of prompt and completion; None: as many as the model has
    token_ids: bool = False
    more: Mapping[str, object] = field(default_factory=dict)

    def settings(self) -> dict:
        """What a resume must have in common with the run it goes on with."""
        asked = {"model": self.model, "tasks": dict(self.tasks), "k": dict(self.ks), "chat": self.chat}
        return {**asked, "max_model_len": self.max_model_len, **asdict(self.sampling), **self.more}


@dataclass(frozen=True)
class Grading:
    """How completions are graded; see `grading.grade`."""

    cores: int = 0
    timeout: float = 0.0
    memory_mb: int = 1024
    allow_unsandboxed: bool = False
