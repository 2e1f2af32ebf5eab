"""Grade many rollouts at once within a core budget: the maths grader, the code grader, or a user's own function."""

from __future__ import annotations

import asyncio
import json
import os
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from openrlhf_shear.rewards.code import grade_code
from openrlhf_shear.rewards.function_worker import FunctionWorker
from openrlhf_shear.rewards.graded import Graded
from openrlhf_shear.rewards.jail import find_jail
from openrlhf_shear.rewards.maths import grade_math
from openrlhf_shear.rewards.maths.workers import MathWorkers
from openrlhf_shear.rewards.responses import answer_of

BUILT_IN = ("math", "code")
DEFAULT_SECONDS = {"math": 5.0, "code": 10.0}  # and for a user's file:
FUNCTION_SECONDS = 60.0


@dataclass(frozen=True)
class RewardSettings:
    """What a pool is made of.

    Args:
        reward: "math", "code", or the path of a .py file with OpenRLHF's `reward_func(queries, prompts, labels)`.
        cores: grades at a time; 0 for half of the machine's.
        timeout: seconds a grade may take (code: a test); 0 for `DEFAULT_SECONDS`, `FUNCTION_SECONDS` for a file.
        memory_mb: of a program that is graded.
        allow_unsandboxed: run graded programs without a jail where none works.
    """

    reward: str
    cores: int = 0
    timeout: float = 0.0
    memory_mb: int = 1024
    allow_unsandboxed: bool = False

    @property
    def budget(self) -> int:
        return self.cores or max(1, (os.cpu_count() or 2) // 2)

    @property
    def seconds(self) -> float:
        return self.timeout or DEFAULT_SECONDS.get(self.reward, FUNCTION_SECONDS)


class RewardPool:
    """Graders on `settings.budget` threads, each driving processes that can be killed.

    Raises:
        JailError: responses would be run outside a jail.
    """

    def __init__(self, settings: RewardSettings, max_pending: int | None = None):
        """
        Args:
            max_pending: grades taken in at a time, default 64 a core; further `grade` calls wait (back-pressure).
        """
        if settings.reward in BUILT_IN:
            find_jail(settings.allow_unsandboxed)
        self._settings, self._closed = settings, False
        self._threads = ThreadPoolExecutor(settings.budget, thread_name_prefix="reward")
        self._room = asyncio.Semaphore(max_pending or 64 * settings.budget)
        self._workers: list[FunctionWorker] = []
        self._idle: queue.SimpleQueue[FunctionWorker] = queue.SimpleQueue()
        self._maths = MathWorkers(settings.budget, settings.allow_unsandboxed) if settings.reward == "math" else None
        grade = {"math": self._math, "code": self._code}.get(settings.reward, self._function)
        self._grade: Callable[[str, str, object], Graded] = grade
        if grade == self._function:
            self._workers = [FunctionWorker(settings.reward, settings.seconds) for _ in range(settings.budget)]
            for worker in self._workers:
                self._idle.put(worker)

    async def grade(self, query: str, prompt: str, label: object) -> Graded:
        """One rollout's reward; no rollout and no reward function makes this raise.

        Args:
            query: prompt and response, decoded.
            prompt: the prompt as it was given.
            label: math: the gold answer, or a JSON list of equivalent ones; code: the tests (`code.tests_of`).
        """
        async with self._room:
            future = self._threads.submit(self._safely, query, prompt, label)
            try:
                return await asyncio.wrap_future(future)
            except asyncio.CancelledError:
                if future.cancelled() and self._closed:
                    return Graded(reason="the pool was closed")
                raise

    def grade_all(self, samples: Iterable[tuple[str, str, object]]) -> list[Graded]:
        """As `grade`, for (query, prompt, label) triples, in order; for callers without an event loop."""
        return list(self._threads.map(lambda sample: self._safely(*sample), samples))

    def close(self) -> None:
        """End every process; what is not graded by then comes back as a failure."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.retire()
        self._threads.shutdown(wait=True)
        for worker in (*self._workers, self._maths):
            if worker is not None:
                worker.close()

    def _safely(self, query: str, prompt: str, label: object) -> Graded:
        try:
            return self._grade(query, prompt, label)
        except Exception as error:  # a broken label, a jail that is gone: this rollout fails, no other
            return Graded(reason=f"grader raised {type(error).__name__}", detail=str(error)[:500])

    def _math(self, query: str, prompt: str, label: object) -> Graded:
        response = answer_of(query, prompt)
        verdict = grade_math(response, golds_of(label), timeout=self._settings.seconds, workers=self._maths)
        return _built_in(verdict.correct, verdict.reason, verdict.seconds, "no_answer")

    def _code(self, query: str, prompt: str, label: object) -> Graded:
        settings = self._settings
        verdict = grade_code(
            answer_of(query, prompt),
            label,
            timeout=settings.seconds,
            memory_mb=settings.memory_mb,
            allow_unsandboxed=settings.allow_unsandboxed,
        )
        return _built_in(verdict.passed, verdict.reason, verdict.seconds, "no_code")

    def _function(self, query: str, prompt: str, label: object) -> Graded:
        worker = self._idle.get()
        try:
            return worker.grade(query, prompt, label)
        finally:
            self._idle.put(worker)


def golds_of(label: object) -> str | list[str]:
    """The gold answer of a label: itself, or the strings of a JSON list.

    >>> golds_of("42"), golds_of('["1/2", "0.5"]'), golds_of("[1, 2]")
    ('42', ['1/2', '0.5'], '[1, 2]')
    """
    if isinstance(label, list):
        return [str(gold) for gold in label]
    text = str(label)
    if text.startswith("["):
        try:
            golds = json.loads(text)
        except ValueError:
            return text
        if golds and all(isinstance(gold, str) for gold in golds):
            return golds
    return text


def _built_in(right: bool, verdict: str | None, seconds: float, nothing: str) -> Graded:
    """A verdict as a reward, with what to see of it in the logs: `nothing` found, out of time, how long."""
    logs = {f"reward_{name}": float(verdict == name) for name in (nothing, "timeout")} | {"reward_seconds": seconds}
    return Graded(float(right), float(right), extra_logs=logs, verdict=verdict)
