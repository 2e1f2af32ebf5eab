"""The verdict on a response, from the grader to the metric: the decision and its reason, or why there is none."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from openrlhf_shear.config.secrets import hidden

QUESTIONABLE = 1e6  # a reward further from 0 is more likely a mistake (a unit, an overflow) than intended


@dataclass(frozen=True)
class Verdict:
    """A grader's decision on a response.

    A wrong, unreadable or endless *answer* is not correct, with a `reason`. A `failure` means that no grade could be
    made at all. The reward function may have raised, hung or returned no number. The label may be broken, the worker or
    the engine dead, or every server silent. A failure is no zero: `correct`, `reward` and `score` are None.

    Attributes:
        correct: of a user's function: its score is at least 1.
        reason: why the response is not correct, by the grader: "wrong", "no_answer", "timeout", "wrong_answer", ...
        failure: a short phrase, the same for failures of a kind, which are counted by it. It and its detail, which are
            logged, are without secrets (`config.secrets.hidden`).
        answer: the final answer, of mathematics; at most 500 characters of it.
        lenient: correct by the lenient score of an evaluation (`sampling.grading`), of mathematics; never a reward.
        detail: of the failure, or of the first test that a program did not pass.
        numbers: reward and score of a user's function; None for a grader that says right or wrong.
        extra_logs: logged values, averaged over the rollouts of a step.
        method: of mathematics: "normalized" (the cheap match), "math_verify", or "none" if nothing was compared.
        outcomes: of each test of a program: passed, wrong_answer, error, timeout, memory, output_limit or not_run.
        seconds: from the call to the verdict [s].
        startup_seconds: the part of `seconds` until the jail of a program was ready.
    """

    correct: bool | None
    reason: str | None = None
    failure: str | None = None
    answer: str | None = None
    lenient: bool | None = None
    detail: str = ""
    numbers: tuple[float, float] | None = None
    extra_logs: dict[str, float] = field(default_factory=dict)
    method: str | None = None
    outcomes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    startup_seconds: float = field(default=0.0, compare=False)

    def __post_init__(self):
        if self.failure is not None:
            object.__setattr__(self, "failure", hidden(self.failure))
            object.__setattr__(self, "detail", hidden(self.detail))

    @property
    def reward(self) -> float | None:
        """Value that the advantage is made of."""
        return self._both[0]

    @property
    def score(self) -> float | None:
        """Value that dynamic filtering and SHEAR's correctness use."""
        return self._both[1]

    @property
    def is_questionable(self) -> bool:
        """Whether the reward or score is finite but absurd, beyond `QUESTIONABLE`: kept, but worth a warning."""
        return self.numbers is not None and max(map(abs, self.numbers)) > QUESTIONABLE

    @property
    def _both(self) -> tuple[float | None, float | None]:
        return self.numbers or (None if self.correct is None else float(self.correct),) * 2

    def as_openrlhf(self) -> dict:
        """Return the dict that OpenRLHF's executor reads for a query."""
        return {"rewards": self.reward, "scores": self.score, "extra_logs": dict(self.extra_logs)}


def of_numbers(reward: float, score: float, extra_logs: Mapping[str, float] | None = None) -> Verdict:
    """Return the verdict of a user's function. A score below 1 is wrong."""
    right = score >= 1
    return Verdict(right, None if right else "wrong", numbers=(reward, score), extra_logs=dict(extra_logs or {}))


def as_answer(verdict: Verdict) -> dict:
    """Return the dict that `read_reward` reads as this verdict: the answer of `rewards.server` to one query."""
    failed = [{"index": 0, "reason": verdict.failure or "no reward", "detail": verdict.detail}]
    return verdict.as_openrlhf() | {"failed": failed if verdict.reward is None else []}


def read_reward(output: object) -> Verdict:
    """Read a query's result of a reward function or server, in any form that OpenRLHF takes.

    Args:
        output: a dict with `rewards` and, optionally, `scores` (default: the reward) and `extra_logs`. Each value is a
            number or holds exactly one: a list, a numpy array, a tensor.

    Returns:
        Its verdict; a failure if the reward or score is missing, None, NaN, infinite or no single number.
    """
    if not isinstance(output, Mapping):
        return Verdict(None, failure="returned no dict", detail=f"got {type(output).__name__}")
    if output.get("failed"):  # from `openrlhf_shear.rewards.server`
        return _told(output["failed"])
    try:
        reward = _number(output.get("rewards"), "rewards")
        score = reward if output.get("scores") is None else _number(output["scores"], "scores")
        logs = output.get("extra_logs") or {}
        if not isinstance(logs, Mapping):
            raise _NoNumberError("extra_logs is no dict", f"got {type(logs).__name__}")
        logs = {str(name): _number(value, name) for name, value in logs.items()}
    except _NoNumberError as error:
        return Verdict(None, failure=error.args[0], detail=error.args[1])
    return of_numbers(reward, score, logs)


def _told(failed: object) -> Verdict:
    """Return the failure that a server reports for its query. A server other than this fork's may use any form."""
    try:
        return Verdict(None, failure=str(failed[0]["reason"]), detail=str(failed[0]["detail"]))
    except (TypeError, LookupError):
        return Verdict(None, failure="reward server failed", detail=f"it answered failed: {failed!r}"[:500])


class _NoNumberError(ValueError):
    """A failure and its detail."""


def _number(value: object, name: str) -> float:
    if hasattr(value, "tolist"):  # tensors, arrays, and their scalars
        value = value.tolist()
    while isinstance(value, list | tuple):
        if len(value) != 1:
            raise _NoNumberError("wrong shape", f"{name} must hold one value a query: got {len(value)}")
        value = value[0]
    if value is None:
        raise _NoNumberError("returned None", f"{name} is None or missing")
    if not isinstance(value, int | float):
        raise _NoNumberError("not a number", f"{name} must be a number: got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:  # an int of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise _NoNumberError("not finite", f"{name} is {number}")
    return number
