"""Helper processes that can be killed, a few of them, shared by the threads of a process.

Another thread may call off a grade under way (`Job`): the processes that run for it are then killed.
"""

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any


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


class ClosedError(RuntimeError):
    """The crew has been closed."""


class Crew(AbstractContextManager):
    """Workers that each do a single job at a time.

    A worker starts with the first job that finds none idle, and stays for later jobs. A worker that is dead, or that a
    job leaves with an exception, is ended, and the next job starts another. Any number of threads may ask: all but
    `count` wait for their turn, and neither this wait nor a worker's start counts towards a timeout.

    Args:
        spawn: starts a worker. It has `poll` as `subprocess.Popen`; `greet`, which waits until it is ready; `kill`, for
            any thread; and `end`, which kills and reaps it, and closes its pipes.

    Raises:
        ValueError: count is below 1.
    """

    def __init__(self, count: int, spawn: Callable[[], Any]) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1: got {count}; use the number of cores for rewards, e.g. 2")
        self._count, self._spawn = count, spawn
        self._turn = threading.BoundedSemaphore(count)
        self._lock = threading.Lock()  # guards the fields below
        self._idle: list[Any] = []
        self._all: set[Any] = set()
        self._closed = False

    @property
    def workers(self) -> tuple[Any, ...]:
        """The workers that run now, idle or lent."""
        with self._lock:
            return tuple(self._all)

    def close(self) -> None:
        """Kill every worker and wait until no thread uses any. Jobs under way fail; later jobs raise `ClosedError`."""
        with self._lock:
            self._closed = True
            busy = self._all.difference(self._idle)
        for worker in busy:
            worker.kill()
        self.renew()
        for wait in (self._turn.acquire, self._turn.release):
            for _ in range(self._count):
                wait()

    def renew(self) -> None:
        """End the idle workers; later jobs get new workers."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            self._discard(worker)

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _lent(self) -> Iterator[Any]:
        """Lend a worker for a single job."""
        with self._turn:
            worker = self._take()
            try:
                with killable(worker.kill):
                    yield worker
            except CalledOffError:  # before the worker was asked anything
                self._lay(worker)
                raise
            except BaseException:
                self._discard(worker)
                raise
            self._lay(worker)

    def _take(self) -> Any:
        while True:
            with self._lock:
                if not self._idle:
                    break
                worker = self._idle.pop()
            if worker.poll() is None:
                return worker
            self._discard(worker)
        worker = self._spawn()
        with self._lock:
            self._all.add(worker)
            closed = self._closed
        try:
            if closed:
                raise ClosedError("the workers are closed; make new ones")
            worker.greet()
        except BaseException:
            self._discard(worker)
            raise
        return worker

    def _lay(self, worker: Any) -> None:
        """Make a worker idle; end it if the crew is closed."""
        with self._lock:
            closed = self._closed
            self._idle += [] if closed else [worker]
        if closed:
            self._discard(worker)

    def _discard(self, worker: Any) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.end()


class Defaults:
    """Crews of this process, up to four workers each, made on first use. A fork makes its own."""

    def __init__(self, make: Callable[[int, bool], Any]) -> None:
        self._make = make
        self._renew()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._renew)

    def __call__(self, allow_unsandboxed: bool = False) -> Any:
        return self._crews[allow_unsandboxed]

    def close(self) -> None:
        """End every process; the next job starts new processes."""
        closing = [*self._crews.values()]
        self._renew()
        for crew in closing:
            crew.close()

    def _renew(self) -> None:
        count = min(4, os.cpu_count() or 1)
        self._crews = {allow: self._make(count, allow) for allow in (False, True)}
