"""Grades under way, which another thread may call off: the processes that run for them are then killed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext


class CalledOffError(RuntimeError):
    """The grade was called off: nothing waits for it."""


class Job:
    """A call of a function in a thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kills: list[Callable[[], None]] = []
        self.called_off = False

    def run(self, function: Callable, *arguments):
        _here.job = self
        try:
            return function(*arguments)
        finally:
            _here.job = None

    def call_off(self) -> None:
        """Kill the processes of this job. Call it once, from any thread."""
        with self._lock:
            self.called_off = True
            for kill in self._kills:
                kill()

    @contextmanager
    def _with(self, kill: Callable[[], None]) -> Iterator[None]:
        with self._lock:
            if self.called_off:
                raise CalledOffError("the grade was called off")
            self._kills.append(kill)
        try:
            yield
        finally:
            with self._lock:
                self._kills.remove(kill)


class _Here(threading.local):
    """The job of each thread."""

    job: Job | None = None


_here = _Here()


@contextmanager
def killable(kill: Callable[[], None]) -> Iterator[None]:
    """Call `kill` if this thread's job is called off within. Raises CalledOffError: it has been called off already."""
    with nullcontext() if _here.job is None else _here.job._with(kill):
        yield


def called_off() -> bool:
    """Return whether this thread's job has been called off."""
    return _here.job is not None and _here.job.called_off
