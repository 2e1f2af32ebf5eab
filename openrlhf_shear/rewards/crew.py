"""Helper processes that can be killed, a few of them, shared by the threads of one process."""

import atexit
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, Protocol, TypeVar


class Worker(Protocol):
    """A process, or what stands for one."""

    def poll(self) -> int | None:
        """As `subprocess.Popen.poll`."""


class ClosedError(RuntimeError):
    """The crew has been closed."""


class Crew(AbstractContextManager):
    """Workers that each do one job at a time.

    A worker starts with the first job that finds none idle, and stays for later ones. One that is dead, or that a job
    leaves with an exception, is ended, and the next job starts another. Any number of threads may ask: more than
    `count` wait for their turn, and waiting counts towards no timeout.

    Raises:
        ValueError: count is below 1.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1: got {count}; use the number of cores for rewards, e.g. 2")
        self._count = count
        self._turn = threading.BoundedSemaphore(count)
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._closed = False

    @abstractmethod
    def _spawn(self) -> Worker:
        """A new worker, perhaps not ready yet."""

    @abstractmethod
    def _greet(self, worker: Worker) -> None:
        """Wait until a new worker is ready; raises if it will not be."""

    @abstractmethod
    def _kill(self, worker: Worker) -> None:
        """From any thread; the one that waits for the worker ends it."""

    @abstractmethod
    def _end(self, worker: Worker) -> None:
        """Kill and reap a worker, and close its pipes."""

    def close(self) -> None:
        """Kill every worker and wait until no thread uses one. Jobs under way fail, later ones raise `ClosedError`."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._all.difference(idle)
            self._all.clear()
        for worker in busy:
            self._kill(worker)
        for worker in idle:
            self._end(worker)
        for wait in (self._turn.acquire, self._turn.release):
            for _ in range(self._count):
                wait()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _lent(self) -> Iterator[Worker]:
        """A worker for one job."""
        with self._turn:
            worker = self._take()
            try:
                yield worker
            except BaseException:
                self._discard(worker)
                raise
            with self._lock:
                if not self._closed:
                    self._idle.append(worker)
                    return
            self._discard(worker)

    def _take(self) -> Worker:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is not None:
            if worker.poll() is None:
                return worker
            self._discard(worker)
        worker = self._spawn()
        try:
            with self._lock:
                if self._closed:
                    raise ClosedError("the workers are closed; make new ones")
                self._all.add(worker)
            self._greet(worker)
        except BaseException:
            self._discard(worker)
            raise
        return worker

    def _discard(self, worker: Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        self._end(worker)


Crews = TypeVar("Crews", bound=AbstractContextManager)


class Defaults(Generic[Crews]):
    """Those of this process, one for each `allow_unsandboxed`; a fork has its own, as processes are the parent's."""

    def __init__(self, make: Callable[[bool], Crews]) -> None:
        self._make = make
        self._renew()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._renew)

    def __getitem__(self, allow_unsandboxed: bool) -> Crews:
        return self._crews[allow_unsandboxed]

    def close(self) -> None:
        """End every process; the next job makes new ones."""
        closing = [*self._crews.values()]
        self._renew()
        for crew in closing:
            crew.close()

    def _renew(self) -> None:
        self._crews = {allow: self._make(allow) for allow in (False, True)}
