"""The `Grader`: everything that the package asks of a kind of answer. `graders` has the table of them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from openrlhf_shear.rewards.verdict import Reason, Verdict


@dataclass(frozen=True)
class Limits:
    """Limits of a grade, and where its answer may stand.

    Args:
        seconds: of a comparison, or of a test of a program; 0 where a grade has no limit.
        memory_mb: memory of a program [MiB].
        formats: of maths (`maths.answers.final_answer`).
        allow_unsandboxed: run programs without a jail where none works.
    """

    seconds: float
    memory_mb: int
    formats: tuple[str, ...]
    allow_unsandboxed: bool = False


@dataclass(frozen=True)
class Sample:
    """A response with the prompt and the label that belong to it; `tolerance` is the allowed distance from a gold."""

    response: str
    prompt: str
    label: object
    tolerance: float | None = None


@dataclass(frozen=True)
class Grader:
    """A built-in grader. Its rewards are 1 (correct) and 0.

    Args:
        name: the word that flags take.
        title: heading of its benchmarks in reports.
        about: a clause for `--help`.
        grade: returns the verdict on a sample, within limits, by the processes that `start_workers` made. No response
            makes it raise; a broken label may.
        label_problem: says why a label cannot be graded against, as the end of a sentence; None: it can.
        example: a response and a label that it must grade correct, to find out before training whether it works here.
        nothing: the reason of a verdict on a response without an answer; shown as a share of the completions.
        start_workers: makes the jailed processes for so many grades at a time, with or without `allow_unsandboxed`.
            None: it evaluates nothing, and needs no jail.
        seconds: default time limit of what `timed` names, e.g. "a maths grade"; 0 without a limit.
        has_tests: labels are tests of a program, as `data.sources` tells them from answers.
        has_answer: verdicts have an `answer`, by which an evaluation takes the majority.
        lenient: (answer, golds, correct) -> correct by the lenient score of an evaluation.
        system: system turn that an evaluation puts before a user's texts.
    """

    name: str
    title: str
    about: str
    grade: Callable[[Sample, Limits, AbstractContextManager | None], Verdict]
    label_problem: Callable[[object], str | None]
    example: tuple[str, object]
    nothing: Reason = Reason.NO_ANSWER
    start_workers: Callable[[int, bool], AbstractContextManager] | None = None
    seconds: float = 0.0
    timed: str = ""
    has_tests: bool = False
    has_answer: bool = True
    lenient: Callable[[str | None, str | Sequence[str], bool], bool] | None = None
    system: str | None = None
