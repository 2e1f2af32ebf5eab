"""Helper processes that can be killed, a few of them, shared by the threads of one process."""

import subprocess
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


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
        self._idle: list[subprocess.Popen] = []
        self._all: set[subprocess.Popen] = set()
        self._closed = False

    @abstractmethod
    def _spawn(self) -> subprocess.Popen:
        """A new worker, perhaps not ready yet."""

    @abstractmethod
    def _greet(self, worker: subprocess.Popen) -> None:
        """Wait until a new worker is ready; raises if it will not be."""

    @abstractmethod
    def _kill(self, worker: subprocess.Popen) -> None:
        """From any thread; the one that waits for the worker ends it."""

    @abstractmethod
    def _end(self, worker: subprocess.Popen) -> None:
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
    def _lent(self) -> Iterator[subprocess.Popen]:
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

    def _take(self) -> subprocess.Popen:
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

    def _discard(self, worker: subprocess.Popen) -> None:
        with self._lock:
            self._all.discard(worker)
        self._end(worker)
