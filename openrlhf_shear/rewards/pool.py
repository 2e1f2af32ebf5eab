"""Grading of many responses at once within a core budget, by the maths or code grader or a user's own function."""

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from openrlhf_shear.rewards.code import grade_code
from openrlhf_shear.rewards.code.workers import CodeWorkers
from openrlhf_shear.rewards.function_workers import FunctionWorkers
from openrlhf_shear.rewards.jail import JailError, find_jail
from openrlhf_shear.rewards.jobs import Job
from openrlhf_shear.rewards.labels import golds_of, is_ordered
from openrlhf_shear.rewards.limits import named_limit
from openrlhf_shear.rewards.maths import grade_math
from openrlhf_shear.rewards.maths.workers import MathWorkers
from openrlhf_shear.rewards.responses import answer_of
from openrlhf_shear.rewards.settings import BUILT_IN, RewardSettings, check_formats
from openrlhf_shear.rewards.verdict import Failure, Reason, Verdict

CHECK_SECONDS = 30.0
_CHECK_TESTS = {"inputs": [""], "outputs": ["42\n"]}

Sample = tuple[str, str, object] | tuple[str, str, object, float | None]
"""Query, prompt and label (see `RewardPool.grade`), and a gold's tolerance (math: see `grade_math`)."""


class RewardPool:
    """Graders on `settings.budget` threads, each driving processes that can be killed.

    Raises:
        JailError: responses would be run outside a jail.
        ValueError: an answer format is unknown.
    """

    def __init__(self, settings: RewardSettings, max_pending: int | None = None):
        """
        Args:
            max_pending: grades taken in at a time, default 64 a core; further `grade` calls wait (back-pressure).
        """
        if settings.reward in BUILT_IN:
            find_jail(settings.allow_unsandboxed)
        self._settings, self._closed = settings, False
        self._formats = check_formats(settings.answer_format.split(","))
        self._threads = ThreadPoolExecutor(settings.budget, thread_name_prefix="reward")
        self._room = asyncio.Semaphore(max_pending or 64 * settings.budget)
        if settings.reward == "math":
            self._crew = MathWorkers(settings.budget, settings.allow_unsandboxed)
            self._crew.keep(settings.budget + 1)
        elif settings.reward == "code":
            self._crew = CodeWorkers(settings.budget, settings.allow_unsandboxed)
        else:
            self._crew = FunctionWorkers(settings.reward, settings.seconds, settings.budget)
            self._crew.keep()
        self._grade = {"math": self._math, "code": self._code}.get(settings.reward, self._function)

    def check(self) -> None:
        """Check that grading works on this machine, before training: grade a math or code sample, or load the file.

        Raises:
            JailError: no jail works here.
            ImportError: the file is missing, does not load or has no fitting `reward_func`.
            RuntimeError: the file's process ended or hung while it loaded, or math or code grade wrong.
        """
        if isinstance(self._crew, FunctionWorkers):
            return self._crew.check()
        settings, seconds = self._settings, max(CHECK_SECONDS, self._settings.seconds)
        try:
            if settings.reward == "math":
                said = grade_math("\\boxed{1 + x}", "x + 1", timeout=seconds, workers=self._crew)
            else:
                said = grade_code("```python\nprint(42)\n```", _CHECK_TESTS, timeout=seconds, **self._program_options)
        except JailError as error:
            raise JailError(f"{error}{named_limit()}") from error
        if not said.correct:
            about = f"{said.why} {said.detail}".strip() + named_limit()
            remedy = "see python -m openrlhf_shear.cli.doctor for what this machine lacks"
            raise RuntimeError(f"the {settings.reward} grader does not work on this machine: {about}; {remedy}")

    async def grade(self, query: str, prompt: str, label: object) -> Verdict:
        """Return the verdict on a response. No response and no reward function makes this raise.

        Cancellation ends the processes of the grade.

        Args:
            query: prompt and response, decoded.
            prompt: the prompt as it was given.
            label: math: the gold answer, or a JSON list of equivalent golds (`labels.golds_of`); code: the tests
                (`code.tests_of`).
        """
        async with self._room:
            job = Job()
            try:
                future = self._threads.submit(job.run, self._safely, query, prompt, label)
            except RuntimeError:
                return Verdict(None, failure=Failure.POOL_CLOSED)  # while this call waited
            try:
                return await asyncio.wrap_future(future)
            except asyncio.CancelledError:
                job.call_off()
                if future.cancelled() and self._closed:
                    return Verdict(None, failure=Failure.POOL_CLOSED)
                raise

    def grade_all(self, samples: Iterable[Sample]) -> Iterator[Verdict]:
        """Return an iterator over many verdicts, in order, each as soon as it is ready. Needs no event loop."""
        return self._threads.map(lambda sample: self._safely(*sample), samples)

    def close(self) -> None:
        """End every process. Grades that are not finished by then return as failures."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        if isinstance(self._crew, FunctionWorkers):  # first, as a call may never end
            self._crew.close()
        self._threads.shutdown(wait=True)
        self._crew.close()

    def _safely(self, query: str, prompt: str, label: object, tolerance: float | None = None) -> Verdict:
        try:
            return self._grade(query, prompt, label, tolerance)
        except Exception as error:  # a broken label or a lost jail: only this response fails
            which, detail = type(error).__name__, str(error)[:500]
            return Verdict(None, failure=Failure.GRADER_RAISED, which=which, detail=detail)

    def _math(self, query: str, prompt: str, label: object, tolerance: float | None) -> Verdict:
        options = {"timeout": self._settings.seconds, "tolerance": tolerance, "workers": self._crew}
        asked = {"question": prompt or None, "formats": self._formats, "ordered": is_ordered(label)}
        return _logged(grade_math(answer_of(query, prompt), golds_of(label), **asked, **options))

    def _code(self, query: str, prompt: str, label: object, _: float | None) -> Verdict:
        options = {"timeout": self._settings.seconds, **self._program_options}
        return _logged(grade_code(answer_of(query, prompt), label, **options), Reason.NO_CODE)

    @property
    def _program_options(self) -> dict:
        settings = self._settings
        unsandboxed = settings.allow_unsandboxed
        return {"memory_mb": settings.memory_mb, "allow_unsandboxed": unsandboxed, "workers": self._crew}

    def _function(self, query: str, prompt: str, label: object, _: float | None) -> Verdict:
        return self._crew.grade(query, prompt, label)


def _logged(verdict: Verdict, nothing: Reason = Reason.NO_ANSWER) -> Verdict:
    """Add a verdict's logs: whether `nothing` was found, whether the grade ran out of time, and how long it took."""
    logs = {f"reward_{reason}": float(verdict.reason == reason) for reason in (nothing, Reason.TIMEOUT)}
    return replace(verdict, extra_logs={**logs, "reward_seconds": verdict.seconds})
