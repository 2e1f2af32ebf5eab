"""The verdict on a response, from the grader to the metric: the decision and its reason, or why there is none."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from openrlhf_shear.config.secrets import hidden, quoted

QUESTIONABLE = 1e6  # a reward further from 0 is more likely a mistake (a unit, an overflow) than intended


class Outcome(StrEnum):
    """The end of one test of a program."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"  # another output or value than the test asks for
    ERROR = "error"  # the program raised, ended itself, or gave no plain value
    TIMEOUT = "timeout"  # no time was left for the test
    MEMORY = "memory"  # over its limit
    OUTPUT_LIMIT = "output_limit"  # it printed or returned too much
    NOT_RUN = "not_run"  # an earlier test did not pass, or there is no program


class Reason(StrEnum):
    """Why a response that was graded is not correct. Files and metrics have the text.

    A program has the reason of the first `Outcome` that is not passed.
    """

    WRONG = "wrong"  # the answer differs from the gold; the score of a user's function is below 1
    TIMEOUT = "timeout"  # the comparison or a test took too long
    MEMORY = "memory"  # the comparison or a test needed too much memory
    TOO_LONG = "too_long"  # the answer or program has too many characters
    # of mathematics
    NO_ANSWER = "no_answer"  # no box, and no other mark of an answer
    NOT_TEXT = "not_text"  # the response is no text
    UNEVALUATED = "unevaluated"  # the answer leaves work undone that the gold does not
    UNREADABLE = "unreadable"  # the answer has characters or commands that are not on the whitelist
    TOO_LARGE = "too_large"  # the answer has numbers, powers or a depth that no answer needs
    UNPARSABLE = "unparsable"  # the parser finds no mathematics in the answer
    GOLD_UNPARSABLE = "gold_unparsable"  # the parser finds no mathematics in the gold
    CRASHED = "crashed"  # the comparison ended its process
    # of programs
    NO_CODE = "no_code"  # no program
    WRONG_ANSWER = "wrong_answer"  # see `Outcome`
    ERROR = "error"  # see `Outcome`
    OUTPUT_LIMIT = "output_limit"  # see `Outcome`
    # of an older or newer version
    OTHER = "other"  # `Verdict.which` is its text


class Failure(StrEnum):
    """Why a response has no grade. Files, metrics and answers of servers have the text.

    Five have a text after their own, `Verdict.which`: RAISED, GRADER_RAISED, SERVER_ANSWERED, SERVER_RAISED and
    ENGINE_RAISED.
    """

    # what a reward function or server gave
    RAISED = "raised"  # which: the type of the error
    NO_DICT = "returned no dict"
    LOGS_NO_DICT = "extra_logs is no dict"
    NO_REWARD = "no reward"
    NONE = "returned None"
    WRONG_SHAPE = "wrong shape"  # not exactly one value
    NOT_A_NUMBER = "not a number"
    NOT_FINITE = "not finite"
    # a user's file and its process
    TIMEOUT = "timeout"  # a call took longer than --reward.timeout
    NOT_LOADED = "file does not load"
    OUT_OF_TURN = "answered out of turn"  # the process said something that is no answer to the call
    FILE_HANGS = "reward file hangs"  # not tried: the last calls timed out
    FILE_DIES = "reward file dies"  # not tried: the last calls ended their process
    # graders, their processes, and the pool
    GRADER_RAISED = "grader raised"  # which: the type of the error; a broken label or a lost jail
    WORKER_DIED = "worker died"  # the process of a call or a comparison ended
    JAIL_DIED = "jail died"  # the process of a program was killed from outside, twice
    CHECKER_FAILED = "checker failed"  # the label's checker gave no answer for the expected output
    CALLED_OFF = "called off"  # the caller no longer waits
    POOL_CLOSED = "the pool was closed"
    POOL_DIED = "reward pool died"  # with the grade, also where the grade ran alone
    # reward servers
    NOT_JSON = "label is not JSON"
    SERVER_DOWN = "reward server down"  # not tried: the last calls of every server came to nothing
    SERVER_LATE = "reward server timed out"
    SERVER_REFUSED = "reward server refused"
    SERVER_UNREACHABLE = "reward server unreachable"
    SERVER_HUNG_UP = "reward server hung up"
    SERVER_NOT_TRUSTED = "reward server not trusted"  # its certificate
    SERVER_ANSWERED = "reward server answered"  # which: the status
    SERVER_NO_JSON = "reward server answered no JSON"
    SERVER_TOO_MUCH = "reward server answered too much"
    SERVER_COMPRESSED = "reward server answered compressed"
    SERVER_FAILED = "reward server failed"  # it says so, in an unknown form
    SERVER_RAISED = "reward server failed with"  # which: the type of the error, here
    # samples of an evaluation
    NO_ROOM = "the prompt leaves no room for an answer"
    ENGINE_DIED = "its engine died"
    NO_ENGINE = "no engine is left"
    ENGINE_RAISED = "the engine raised"  # which: the type of the error
    NOT_GRADED = "not graded"  # not yet
    # of a user's server, or an older or newer version
    OTHER = "other"  # `Verdict.which` is its text

    @property
    def again(self) -> bool:
        """Whether another grade may succeed: the response is there. Of OTHER that is not known."""
        return self not in (*_UNSAMPLED, Failure.OTHER)


_UNSAMPLED = (Failure.NO_ROOM, Failure.ENGINE_DIED, Failure.NO_ENGINE, Failure.ENGINE_RAISED)
_WITH_WHICH = (
    Failure.RAISED,
    Failure.GRADER_RAISED,
    Failure.SERVER_ANSWERED,
    Failure.SERVER_RAISED,
    Failure.ENGINE_RAISED,
)


@dataclass(frozen=True)
class Verdict:
    """A grader's decision on a response.

    A wrong, unreadable or endless *answer* is not correct, with a `reason`. A `failure` means that no grade could be
    made at all. The reward function may have raised, hung or returned no number. The label may be broken, the worker or
    the engine dead, or every server silent. A failure is no zero: `correct`, `reward` and `score` are None.

    Attributes:
        correct: of a user's function: its score is at least 1.
        reason: why the response is not correct, by the grader.
        failure: why there is no grade. `which` and `detail` of a failure, which are logged, are without secrets
            (`config.secrets.hidden`).
        answer: the final answer, of mathematics; at most 500 characters of it.
        lenient: correct by the lenient score of an evaluation (`sampling.plan`), of mathematics; never a reward.
        detail: of the failure, or of the first test that a program did not pass.
        numbers: reward and score of a user's function; None for a grader that says right or wrong.
        extra_logs: logged values, averaged over the rollouts of a step.
        method: of mathematics: "normalized" (the cheap match), "math_verify", or "none" if nothing was compared.
        outcomes: of each test of a program.
        which: what tells apart reasons or failures of a kind, which are counted apart (`why`): see `Failure`.
        seconds: from the call to the verdict [s].
    """

    correct: bool | None
    reason: Reason | None = None
    failure: Failure | None = None
    answer: str | None = None
    lenient: bool | None = None
    detail: str = ""
    numbers: tuple[float, float] | None = None
    extra_logs: dict[str, float] = field(default_factory=dict)
    method: str | None = None
    outcomes: tuple[Outcome, ...] = ()
    which: str = ""
    seconds: float = field(default=0.0, compare=False)

    def __post_init__(self):
        """Raise ValueError for a reason or failure that is none: `of_texts` reads foreign ones."""
        if self.reason is not None:
            object.__setattr__(self, "reason", Reason(self.reason))
        if self.failure is not None:
            object.__setattr__(self, "failure", Failure(self.failure))
            object.__setattr__(self, "which", quoted(hidden(self.which)))
            object.__setattr__(self, "detail", quoted(hidden(self.detail)))

    @property
    def why(self) -> str | None:
        """The text of the failure or reason, with `which`, that it is counted by; None if it is correct."""
        kind = self.reason if self.failure is None else self.failure
        if kind is None:
            return None
        if kind in (Reason.OTHER, Failure.OTHER):
            return self.which or kind.value
        return f"{kind} {self.which}".rstrip()

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


def of_numbers(reward: float, score: float, extra_logs: Mapping[str, float] | None = None) -> Verdict:
    """Return the verdict of a user's function. A score below 1 is wrong."""
    right = score >= 1
    return Verdict(right, None if right else Reason.WRONG, numbers=(reward, score), extra_logs=dict(extra_logs or {}))


def of_texts(correct: bool | None, reason: str | None = None, failure: str | None = None, **others: Any) -> Verdict:
    """Return the verdict of a file, server or other process, which has reason and failure as text (`Verdict.why`).

    A text that is unknown here is kept: it is the `which` of OTHER.
    """
    if failure is not None and failure in {*Failure}:
        return Verdict(correct, failure=Failure(failure), **others)
    if failure is not None:
        kind = next((kind for kind in _WITH_WHICH if failure.startswith(f"{kind} ")), None)
        which = failure.removeprefix(f"{kind} ") if kind else failure
        return Verdict(correct, failure=kind or Failure.OTHER, which=which, **others)
    if reason is None or reason in {*Reason}:
        return Verdict(correct, None if reason is None else Reason(reason), **others)
    return Verdict(correct, Reason.OTHER, which=reason, **others)


def as_answer(verdict: Verdict) -> dict:
    """Return the dict that `read_reward` reads as this verdict: the answer of `rewards.server` to one query."""
    numbers = {"rewards": verdict.reward, "scores": verdict.score, "extra_logs": dict(verdict.extra_logs)}
    return numbers | {"failed": as_failed([verdict])}


def as_failed(verdicts: Sequence[Verdict]) -> list[dict]:
    """Return the list of failures in the answer of `rewards.server` to one query or more."""
    return [
        {"index": at, "reason": verdict.why or Failure.NO_REWARD.value, "detail": verdict.detail}
        for at, verdict in enumerate(verdicts)
        if verdict.reward is None
    ]


def read_reward(output: object) -> Verdict:
    """Read a query's result of a reward function or server, in any form that OpenRLHF takes.

    Args:
        output: a dict with `rewards` and, optionally, `scores` (default: the reward) and `extra_logs`. Each value is a
            number or holds exactly one: a list, a numpy array, a tensor.

    Returns:
        Its verdict; a failure if the reward or score is missing, None, NaN, infinite or no single number.
    """
    if not isinstance(output, Mapping):
        return Verdict(None, failure=Failure.NO_DICT, detail=f"got {type(output).__name__}")
    if failed := output.get("failed"):  # from `openrlhf_shear.rewards.server`; another server may use any form
        try:
            return of_texts(None, failure=str(failed[0]["reason"]), detail=str(failed[0]["detail"]))
        except (TypeError, LookupError):
            return Verdict(None, failure=Failure.SERVER_FAILED, detail=f"it answered failed: {failed!r}"[:500])
    if "rewards" not in output:
        names = ", ".join(map(str, output)) or "nothing"
        return Verdict(None, failure=Failure.NONE, detail=f"rewards is missing: the dict has {names}"[:500])
    try:
        reward = _number(output["rewards"], "rewards")
        score = reward if output.get("scores") is None else _number(output["scores"], "scores")
        logs = output.get("extra_logs") or {}
        if not isinstance(logs, Mapping):
            raise _NoNumberError(Failure.LOGS_NO_DICT, f"got {type(logs).__name__}")
        logs = {str(name): _number(value, name) for name, value in logs.items()}
    except _NoNumberError as error:
        return Verdict(None, failure=error.failure, detail=error.detail)
    return of_numbers(reward, score, logs)


class _NoNumberError(ValueError):
    def __init__(self, failure: Failure, detail: str) -> None:
        super().__init__(failure, detail)
        self.failure, self.detail = failure, detail


def _number(value: object, name: str) -> float:
    if hasattr(value, "tolist"):  # tensors, arrays, and their scalars
        value = value.tolist()
    while isinstance(value, list | tuple):
        if len(value) != 1:
            raise _NoNumberError(Failure.WRONG_SHAPE, f"{name} must hold one value a query: got {len(value)}")
        value = value[0]
    if value is None:
        raise _NoNumberError(Failure.NONE, f"{name} is None")
    if not isinstance(value, int | float):
        raise _NoNumberError(Failure.NOT_A_NUMBER, f"{name} must be a number: got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:  # an int of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise _NoNumberError(Failure.NOT_FINITE, f"{name} is {number}")
    return number
