"""Maths workers: jailed hosts that can be killed, a few of them, shared by the threads of a process."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from openrlhf_shear.rewards import jail
from openrlhf_shear.rewards.crew import Crew, Defaults
from openrlhf_shear.rewards.verdict import Reason

SCRIPT = Path(__file__).parent / "inside" / "math_worker.py"
_LIMITS = jail.Limits(memory_mb=1024, cpu_seconds=24 * 3600, tmp_mb=1)
GRACE_SECONDS = 10.0
_MOST_SECONDS = 3600.0
_GONE = (EOFError, OSError, ValueError)  # OSError includes TimeoutError


class WorkerDiedError(RuntimeError):
    """The processes of a comparison were killed from outside, twice. There is no verdict on the answer."""


class MathWorkers(Crew):
    """Jailed hosts of about 100 MB that compare answers (`inside.math_worker`)."""

    def __init__(self, count: int, allow_unsandboxed: bool = False) -> None:
        super().__init__(count, lambda: _host(allow_unsandboxed))

    def compare(
        self,
        gold: str,
        answer: str,
        timeout: float,
        tolerance: float | None = None,
        formulas: Sequence[str] | None = None,
    ) -> tuple[bool, Reason | None]:
        """Return whether two tidy texts (see `text.tidy`) are equal, and if not, why.

        A host that dies or is late by more than 2 s is replaced, and the comparison is made once more.

        Args:
            timeout: limit of the comparison [s].
            tolerance: numbers up to this distance are equal.
            formulas: of the question, tidy; None: the question is not known.

        Raises:
            WorkerDiedError: both tries came to nothing. JailError: no jail works here. ClosedError: the workers are
                closed.
        """
        timeout = min(max(timeout, 0.0), _MOST_SECONDS)
        job = {"gold": gold, "answer": answer, "timeout": timeout, "tolerance": tolerance}
        job["formulas"] = None if formulas is None else list(formulas)
        try:
            reply = self._reply(job)
        except _GONE:
            try:
                reply = self._reply(job)
            except _GONE as error:
                raise WorkerDiedError(
                    f"two hosts in a row died or did not answer: {error!r} (out of memory?)"
                ) from error
        if "fault" in reply:
            raise WorkerDiedError(reply["fault"])
        return reply["correct"], None if reply["reason"] is None else Reason(reply["reason"])

    def _reply(self, job: dict) -> dict:
        with self._lent() as host:
            deadline = time.monotonic() + 2 * job["timeout"] + GRACE_SECONDS  # it may try twice
            host.tell(job, deadline)
            return host.hear(deadline)


def _host(allow_unsandboxed: bool) -> jail.JailProcess:
    """Start a host, which need not be ready yet."""
    box = jail.find_jail(allow_unsandboxed)
    host = box.start(SCRIPT, _LIMITS, packages=True)
    with contextlib.suppress(OSError):  # it has ended: `greet` says so
        host.tell({"no_fork": box.no_fork})
    return host


default_workers = Defaults(MathWorkers)  # hosts start with the first comparisons
