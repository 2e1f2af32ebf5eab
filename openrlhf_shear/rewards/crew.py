"""Helper processes that can be killed, a few of them, shared by the threads of one process."""

import subprocess
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from openrlhf_shear.rewards.jobs import CalledOffError, killable

_LOOK_SECONDS = 0.2  # between two looks at the idle ones
_REST_SECONDS = 5.0  # after a start that failed


class ClosedError(RuntimeError):
    """The crew has been closed."""


class Crew(AbstractContextManager):
    """Workers that each do one job at a time.

    A worker starts with the first job that finds none idle, and stays for later ones; `keep` starts them before. One
    that is dead, or that a job leaves with an exception, is ended, and the next job, or `keep`, starts another. Any
    number of threads may ask: more than `count` wait for their turn, and waiting counts towards no timeout.

    Raises:
        ValueError: count is below 1.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1: got {count}; use the number of cores for rewards, e.g. 2")
        self._count = count
        self._turn = threading.BoundedSemaphore(count)
        self._change = threading.Condition()  # of what follows
        self._idle: list[subprocess.Popen] = []
        self._all: set[subprocess.Popen] = set()
        self._wanted = 0  # workers that are kept
        self._starting = self._waiting = 0  # by the keeper; jobs, for these
        self._closed = False
        self._keeper: threading.Thread | None = None

    def keep(self, wanted: int = 0) -> None:
        """From now on start `wanted` workers, and another one for each that dies, without waiting for a job."""
        self._wanted = wanted
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._keeper.start()

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
        with self._change:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._all.difference(idle)
            self._all.clear()
            self._change.notify_all()
        for worker in busy:
            self._kill(worker)
        for worker in idle:
            self._end(worker)
        for wait in (self._turn.acquire, self._turn.release):
            for _ in range(self._count):
                wait()
        if self._keeper is not None:
            self._keeper.join()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _lent(self) -> Iterator[subprocess.Popen]:
        """A worker for one job."""
        with self._turn:
            worker = self._take()
            try:
                with killable(lambda: self._kill(worker)):
                    yield worker
            except CalledOffError:  # before anything was asked of it
                self._lay(worker)
                raise
            except BaseException:
                self._discard(worker)
                raise
            self._lay(worker)

    def _take(self) -> subprocess.Popen:
        while (worker := self._waited()) is not None:
            if worker.poll() is None:
                return worker
            self._discard(worker)
        worker = self._spawned()
        self._greeted(worker)
        return worker

    def _waited(self) -> subprocess.Popen | None:
        """An idle worker, perhaps one that the keeper is starting."""
        with self._change:
            while not self._idle and self._starting > self._waiting and not self._closed:
                self._waiting += 1
                self._change.wait()
                self._waiting -= 1
            return self._idle.pop() if self._idle else None

    def _spawned(self) -> subprocess.Popen:
        worker = self._spawn()
        with self._change:
            closed = self._closed
            if not closed:
                self._all.add(worker)
                self._wanted = max(self._wanted, min(len(self._all), self._count))
        if closed:
            self._end(worker)
            raise ClosedError("the workers are closed; make new ones")
        return worker

    def _greeted(self, worker: subprocess.Popen) -> None:
        try:
            self._greet(worker)
        except BaseException:
            self._discard(worker)
            raise

    def _lay(self, worker: subprocess.Popen) -> None:
        """Make a worker idle."""
        with self._change:
            if not self._closed and len(self._all) <= max(self._wanted, self._count):
                self._idle.append(worker)
                self._change.notify_all()
                return
        self._discard(worker)

    def _discard(self, worker: subprocess.Popen) -> None:
        with self._change:
            self._all.discard(worker)
            self._change.notify_all()
        self._end(worker)

    def _keep(self) -> None:
        while not self._closed:
            for worker in self._dead():
                self._discard(worker)
            rest = _LOOK_SECONDS if self._refilled() else _REST_SECONDS
            with self._change:
                self._change.wait_for(lambda: self._closed, rest)

    def _dead(self) -> list[subprocess.Popen]:
        """Idle workers that are, and idle no more."""
        with self._change:
            dead = [worker for worker in self._idle if worker.poll() is not None]
            self._idle = [worker for worker in self._idle if worker not in dead]
        return dead

    def _refilled(self) -> bool:
        """Whether as many as are wanted are there, after starting those that were not, all at once."""
        with self._change:
            self._starting = missing = max(0, self._wanted - len(self._all))
        fresh = []
        try:
            for _ in range(missing):
                fresh.append(self._spawned())
            while fresh:
                self._greet(fresh[-1])
                with self._change:
                    self._starting -= 1
                    self._lay(fresh.pop())
        except Exception:  # the next job will start its own, and say what is wrong
            for worker in fresh:
                self._discard(worker)
        with self._change:
            self._starting, whole = 0, not self._starting
            self._change.notify_all()
        return whole
