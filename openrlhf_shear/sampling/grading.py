"""Verdicts of saved completions, from the graders that also give the rewards: in parallel, each with its own fate."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

from tqdm import tqdm

from openrlhf_shear.rewards.code import grade_code
from openrlhf_shear.rewards.jail import find_jail
from openrlhf_shear.rewards.maths import grade_math
from openrlhf_shear.rewards.maths.workers import MathWorkers
from openrlhf_shear.rewards.pool import BUILT_IN, RewardPool, RewardSettings, golds_of
from openrlhf_shear.rewards.responses import answer_of
from openrlhf_shear.sampling.lenient import lenient
from openrlhf_shear.sampling.records import Completion, Question, Verdict

logger = logging.getLogger(__name__)

RAISED = "grader raised "


def grade(
    questions: Mapping[tuple[str, str], Question],
    completions: Iterable[Completion],
    tasks: Mapping[str, str],
    *,
    cores: int = 0,
    timeout: float = 0.0,
    memory_mb: int = 1024,
    allow_unsandboxed: bool = False,
    again: bool = False,
    progress: bool = True,
) -> list[Completion]:
    """The completions with their verdicts, in the same order. No response makes this raise, and none affects another.

    A grader that raises (a broken label, a jail that stops working) gives no verdict but a failure. A program or a
    comparison that runs out of time is wrong, with the reason "timeout". A truncated response is graded as it is.

    Args:
        questions: (benchmark, id) -> question.
        tasks: benchmark -> "math", "code", or a .py file with `reward_func`, of which a score of 1 is correct.
        cores: grades at a time; 0 for half of the machine's.
        timeout: of a comparison of answers, or of each test of a program [s]; 0 for that of the rewards, 5 and 10.
        memory_mb: of a program [MiB].
        allow_unsandboxed: see `jail.find_jail`.
        again: grade those that have a verdict too, but not those that failed before grading (the engine died).
        progress: show a bar on stderr.

    Raises:
        ValueError: a completion answers no question, its benchmark has no task, or a number above makes no sense.
        JailError: no jail works here; nothing is graded.
    """
    completions = list(completions)
    _check(questions, completions, tasks, cores, timeout, memory_mb)
    due = [at for at, completion in enumerate(completions) if _is_due(completion, again)]
    if not due:
        return completions
    find_jail(allow_unsandboxed)
    cores = RewardSettings("math", cores=cores).budget
    with ExitStack() as stack:
        workers = stack.enter_context(MathWorkers(cores, allow_unsandboxed))
        graders = {}
        for task in dict.fromkeys(tasks.values()):
            settings = RewardSettings(task, cores, timeout, memory_mb, allow_unsandboxed)
            pool = None if task in BUILT_IN else stack.enter_context(closing(RewardPool(settings)))
            graders[task] = _Grader(settings, workers, pool)
        threads = ThreadPoolExecutor(cores, thread_name_prefix="grade")
        try:
            places = {}
            for at in due:
                completion = completions[at]
                question = questions[completion.benchmark, completion.question]
                grader = graders[tasks[completion.benchmark]]
                places[threads.submit(grader.verdict, question, completion.response)] = at
            bar = tqdm(as_completed(places), "grading", len(due), file=sys.stderr, disable=not progress, unit="answer")
            for done in bar:
                at = places[done]
                completions[at] = replace(completions[at], verdict=done.result())
        finally:
            threads.shutdown(cancel_futures=True)
    return completions


@dataclass(frozen=True)
class _Grader:
    """Grades the completions of one task; thread-safe."""

    settings: RewardSettings
    workers: MathWorkers
    pool: RewardPool | None  # of a user's file
    shown: set[str] = field(default_factory=set)  # failures with an example in the log

    def verdict(self, question: Question, response: str) -> Verdict:
        try:
            if self.pool is not None:
                return self._file(question, response)
            return (self._math if self.settings.reward == "math" else self._code)(question, answer_of(response, ""))
        except Exception as error:  # this completion has no verdict; every other one keeps its own
            failure = f"{RAISED}{type(error).__name__}"
            if failure not in self.shown:
                self.shown.add(failure)
                logger.warning("%s on %s of %s: %s", failure, question.id, question.benchmark, str(error)[:300])
            return Verdict(None, failure=failure)

    def _math(self, question: Question, response: str) -> Verdict:
        golds = golds_of(question.label)
        found = grade_math(
            response, golds, timeout=self.settings.seconds, tolerance=question.tolerance, workers=self.workers
        )
        accepted = lenient(found.extracted, golds, found.correct)
        return Verdict(found.correct, found.reason, answer=found.extracted, lenient=accepted)

    def _code(self, question: Question, response: str) -> Verdict:
        found = grade_code(
            response,
            question.label,
            timeout=self.settings.seconds,
            memory_mb=self.settings.memory_mb,
            allow_unsandboxed=self.settings.allow_unsandboxed,
        )
        return Verdict(found.passed, found.reason)

    def _file(self, question: Question, response: str) -> Verdict:
        """Correct is a score of 1; what is between 0 and 1 counts as wrong."""
        prompt = "\n\n".join(message["content"] for message in question.messages)
        (graded,) = self.pool.grade_all([(prompt + response, prompt, question.label)])
        if graded.reason is not None:
            return Verdict(None, failure=graded.reason)
        return Verdict(graded.score >= 1, None if graded.score >= 1 else "wrong")


def _is_due(completion: Completion, again: bool) -> bool:
    """Whether to grade this one. What failed before grading has no response that could be graded."""
    verdict = completion.verdict
    return verdict is None or (again and (verdict.failure is None or verdict.failure.startswith(RAISED)))


def _check(
    questions: Mapping[tuple[str, str], Question],
    completions: list[Completion],
    tasks: Mapping[str, str],
    cores: int,
    timeout: float,
    memory_mb: int,
) -> None:
    for benchmark, task in tasks.items():
        if task not in BUILT_IN and not task.endswith(".py"):
            raise ValueError(f"the task of {benchmark} must be {', '.join(BUILT_IN)} or a .py file: got {task!r}")
    for completion in completions:
        if completion.benchmark not in tasks:
            raise ValueError(f"every benchmark needs a task: got none for {completion.benchmark!r}")
        if (completion.benchmark, completion.question) not in questions:
            raise ValueError(f"every completion must answer a question: got {completion.key}")
    if cores < 0:
        raise ValueError(f"cores must be at least 0: got {cores}; use 0 for half of the machine's")
    if not 0 <= timeout < float("inf"):
        raise ValueError(f"timeout must be a number of seconds: got {timeout}; use e.g. 10, or 0 for the default")
    if memory_mb < 64:
        raise ValueError(f"memory_mb must be at least 64: got {memory_mb}; use e.g. 1024")
