"""Grading of many responses at once within a core budget, by a built-in grader or a user's own function."""

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from openrlhf_shear.rewards.crew import Job
from openrlhf_shear.rewards.function_workers import FunctionWorkers
from openrlhf_shear.rewards.grader import Sample
from openrlhf_shear.rewards.graders import GRADERS
from openrlhf_shear.rewards.jail import find_jail
from openrlhf_shear.rewards.responses import answer_of
from openrlhf_shear.rewards.settings import RewardSettings
from openrlhf_shear.rewards.verdict import Failure, Reason, Verdict

CHECK_SECONDS = 30.0

Query = tuple[str, str, object] | tuple[str, str, object, float | None]
"""Query, prompt and label (see `RewardPool.grade`), and a gold's tolerance (math: see `grade_math`)."""


class RewardPool:
    """Graders on `settings.budget` threads, each driving processes that can be killed.

    Raises:
        JailError: responses would be run outside a jail.
        ValueError: an answer format is unknown.
    """

    def __init__(self, settings: RewardSettings):
        self._grader, self._limits = GRADERS.get(settings.reward), settings.limits
        if self._grader and self._grader.start_workers:
            find_jail(settings.allow_unsandboxed)
        self._closed = False
        self._threads = ThreadPoolExecutor(settings.budget, thread_name_prefix="reward")
        if self._grader is None:
            self._crew = FunctionWorkers(settings.reward, settings.seconds, settings.budget, digest=settings.digest)
        else:
            start = self._grader.start_workers
            self._crew = start(settings.budget, settings.allow_unsandboxed) if start else None

    def check(self) -> None:
        """Check that grading works on this machine, before training: grade the grader's example, or load the file.

        Raises:
            JailError: no jail works here.
            ImportError: the file is missing, does not load or has no fitting `reward_func`.
            RuntimeError: the file's process ended or hung while it loaded, or the example is graded wrong.
        """
        if self._grader is None:
            return self._crew.check()
        response, label = self._grader.example
        limits = replace(self._limits, seconds=max(CHECK_SECONDS, self._limits.seconds))
        verdict = self._grader.grade(Sample(response, "", label), limits, self._crew)
        if not verdict.correct:
            about = f"{verdict.why} {verdict.detail}".strip()
            remedy = "see python -m openrlhf_shear.cli.doctor for what this machine lacks"
            raise RuntimeError(f"the {self._grader.name} grader does not work on this machine: {about}; {remedy}")

    async def grade(self, query: str, prompt: str, label: object) -> Verdict:
        """Return the verdict on a response. No response and no reward function makes this raise.

        Cancellation ends the processes of the grade.

        Args:
            query: prompt and response, decoded.
            prompt: the prompt as it was given.
            label: math: the gold answer, or a JSON list of equivalent golds (`labels.golds_of`); code: the tests
                (`code.tests_of`); of other graders and files, any JSON value that they read.
        """
        job = Job()
        try:
            future = self._threads.submit(job.run, self._safely, query, prompt, label)
        except RuntimeError:
            return Verdict(None, failure=Failure.POOL_CLOSED)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            job.call_off()
            if future.cancelled() and self._closed:
                return Verdict(None, failure=Failure.POOL_CLOSED)
            raise

    def grade_all(self, samples: Iterable[Query]) -> Iterator[Verdict]:
        """Return an iterator over many verdicts, in order, each as soon as it is ready. Needs no event loop."""
        return self._threads.map(lambda sample: self._safely(*sample), samples)

    def close(self) -> None:
        """End every process. Grades that are not finished by then return as failures."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._grader is None:  # first, as a call may never end
            self._crew.close()
        self._threads.shutdown(wait=True)
        if self._crew is not None:
            self._crew.close()

    def _safely(self, query: str, prompt: str, label: object, tolerance: float | None = None) -> Verdict:
        try:
            if self._grader is None:
                return self._crew.grade(query, prompt, label)
            sample = Sample(answer_of(query, prompt), prompt, label, tolerance)
            verdict = self._grader.grade(sample, self._limits, self._crew)
            reasons = (self._grader.nothing, Reason.TIMEOUT)
            logs = {f"reward_{reason}": float(verdict.reason == reason) for reason in reasons}
            return replace(verdict, extra_logs=logs | {"reward_seconds": verdict.seconds})
        except Exception as error:  # a broken label or a lost jail: only this response fails
            which, detail = type(error).__name__, str(error)[:500]
            return Verdict(None, failure=Failure.GRADER_RAISED, which=which, detail=detail)
