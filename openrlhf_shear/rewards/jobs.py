"""Grades under way, which another thread may call off: the processes that run for them are then killed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class CalledOffError(RuntimeError):
    """The grade was called off: nothing waits for it."""


class Job:
    """A call of a function in a thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards the fields below
        self.kills: list[Callable[[], None]] = []
        self.called_off = False

    def run(self, function: Callable, *arguments):
        _here.job = self
        try:
            return function(*arguments)
        finally:
            _here.job = None

    def call_off(self) -> None:
        """Kill the processes of this job. Call it once, from any thread."""
        with self.lock:
            self.called_off = True
            for kill in self.kills:
                kill()


class _Here(threading.local):
    """The job of each thread."""

    job: Job | None = None


_here = _Here()


@contextmanager
def killable(kill: Callable[[], None]) -> Iterator[None]:
    """Call `kill` if this thread's job is called off within. Raises CalledOffError: it has been called off already."""
    job = _here.job or Job()
    with job.lock:
        if job.called_off:
            raise CalledOffError("the grade was called off")
        job.kills.append(kill)
    try:
        yield
    finally:
        with job.lock:
            job.kills.remove(kill)


def called_off() -> bool:
    """Return whether this thread's job has been called off."""
    return _here.job is not None and _here.job.called_off
