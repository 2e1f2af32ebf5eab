"""What a reward says of one rollout: a number, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Graded:
    """One rollout's reward, or the reason it has none.

    A wrong, unreadable or endless *answer* is reward 0. A reason is for a grade that could not be made at all: the
    reward function raised, hung or returned no number, the label is broken, the worker died, no server answered.

    Worked example: `Graded(1.0, 1.0, extra_logs={"timeout": 0.0})`, `Graded(reason="raised ValueError")`.
    """

    reward: float | None = None  # what the advantage is made of
    score: float | None = None  # what dynamic filtering and SHEAR's correctness look at
    reason: str | None = None  # a short phrase, the same for failures of one kind: they are counted by it
    detail: str = ""  # of this failure
    extra_logs: dict[str, float] = field(default_factory=dict)  # averaged over the rollouts of a step, and logged
    verdict: str | None = None  # of the built-in graders: why a reward is 0, e.g. "timeout", "no_answer"

    def as_openrlhf(self) -> dict:
        """The dict OpenRLHF's executor reads of one query."""
        return {"rewards": self.reward, "scores": self.score, "extra_logs": dict(self.extra_logs)}


def read_reward(output: object) -> Graded:
    """One query's result of a reward function or server, in any form that OpenRLHF takes.

    Args:
        output: a dict with `rewards` and, optionally, `scores` (default: the reward) and `extra_logs`. Each value is a
            number or holds exactly one: a list, a numpy array, a tensor.

    Returns:
        Its numbers; a `Graded` with a reason where the reward or score is missing, None, NaN, infinite or not one.
    """
    if not isinstance(output, Mapping):
        return Graded(reason="returned no dict", detail=f"got {type(output).__name__}")
    if output.get("failed"):  # from `openrlhf_shear.rewards.server`
        return Graded(reason=str(output["failed"][0]["reason"]), detail=str(output["failed"][0]["detail"]))
    try:
        reward = _number(output.get("rewards"), "rewards")
        score = reward if output.get("scores") is None else _number(output["scores"], "scores")
        logs = {str(name): _number(value, name) for name, value in (output.get("extra_logs") or {}).items()}
    except _NotANumber as error:
        return Graded(reason=error.reason, detail=error.detail)
    return Graded(reward, score, extra_logs=logs)


class _NotANumber(ValueError):
    def __init__(self, reason: str, detail: str):
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def _number(value: object, name: str) -> float:
    if hasattr(value, "tolist"):  # tensors, arrays, and their scalars
        value = value.tolist()
    while isinstance(value, list | tuple):
        if len(value) != 1:
            raise _NotANumber("wrong shape", f"{name} must hold one value a query: got {len(value)}")
        value = value[0]
    if value is None:
        raise _NotANumber("returned None", f"{name} is None or missing")
    if not isinstance(value, int | float):
        raise _NotANumber("not a number", f"{name} must be a number: got {type(value).__name__}")
    if not math.isfinite(value):
        raise _NotANumber("not finite", f"{name} is {value}")
    return float(value)
