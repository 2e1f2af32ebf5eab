"""Helper processes that can be killed, a few of them, shared by the threads of a process."""

import atexit
import logging
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, Protocol, TypeVar

from openrlhf_shear.rewards.jobs import CalledOffError, killable

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2  # between two checks of the idle workers


class Worker(Protocol):
    """A process, or an object that stands for a process."""

    def poll(self) -> int | None:
        """Return what `subprocess.Popen.poll` returns."""


class ClosedError(RuntimeError):
    """The crew has been closed."""


class Crew(AbstractContextManager):
    """Workers that each do a single job at a time.

    A worker starts with the first job that finds none idle, and stays for later jobs; `keep` starts workers before any
    job. A worker that is dead, or that a job leaves with an exception, is ended. The next job, or `keep`, starts
    another. Any number of threads may ask: all but `count` wait for their turn, and waiting counts towards no timeout.

    Raises:
        ValueError: count is below 1.
    """

    REST_SECONDS = 5.0  # pause of the keeper after a start that failed

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1: got {count}; use the number of cores for rewards, e.g. 2")
        self._count = count
        self._turn = threading.BoundedSemaphore(count)
        self._lock = threading.Condition()  # guards the fields below
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._wanted = 0  # workers to keep running
        self._starting = self._waiting = 0  # workers that the keeper is starting; jobs that wait for them
        self._coming = 0  # workers that jobs are starting, not yet in `_all`
        self._closed = False
        self._logged: set[tuple[str, type[Exception]]] = set()  # what failed, and kinds of errors of the keeper
        self._keeper: threading.Thread | None = None

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers that run now, idle or lent."""
        with self._lock:
            return tuple(self._all)

    def keep(self, wanted: int = 0) -> None:
        """From now on start `wanted` workers, and another for each that dies, without waiting for a job."""
        self._wanted = wanted
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._keeper.start()

    @abstractmethod
    def _spawn(self) -> Worker:
        """Start a worker, which need not be ready yet."""

    @abstractmethod
    def _greet(self, worker: Worker) -> None:
        """Wait until a new worker is ready. Raises if it will not be ready."""

    @abstractmethod
    def _kill(self, worker: Worker) -> None:
        """Kill a worker, from any thread. The thread that waits for the worker ends it."""

    @abstractmethod
    def _end(self, worker: Worker) -> None:
        """Kill and reap a worker, and close its pipes."""

    def close(self) -> None:
        """Kill every worker and wait until no thread uses any. Jobs under way fail; later jobs raise `ClosedError`."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._all.difference(idle)
            self._all.clear()
            self._lock.notify_all()
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
    def _lent(self) -> Iterator[Worker]:
        """Lend a worker for a single job."""
        with self._turn:
            worker = self._take()
            try:
                with killable(lambda: self._kill(worker)):
                    yield worker
            except CalledOffError:  # before the worker was asked anything
                self._lay(worker)
                raise
            except BaseException:
                self._discard(worker)
                raise
            self._lay(worker)

    def _take(self) -> Worker:
        while (worker := self._waited()) is not None:
            if worker.poll() is None:
                return worker
            self._discard(worker)
        try:
            worker = self._spawned()
        finally:
            with self._lock:
                self._coming -= 1
        try:
            self._greet(worker)
        except BaseException:
            self._discard(worker)
            raise
        return worker

    def _waited(self) -> Worker | None:
        """Return an idle worker, perhaps one that the keeper is starting; None if the job shall start its own."""
        with self._lock:
            while not self._idle and self._starting > self._waiting and not self._closed:
                self._waiting += 1
                self._lock.wait()
                self._waiting -= 1
            if self._idle:
                return self._idle.pop()
            self._coming += 1
            return None

    def _spawned(self) -> Worker:
        worker = self._spawn()
        with self._lock:
            closed = self._closed
            if not closed:
                self._all.add(worker)
                self._wanted = max(self._wanted, min(len(self._all), self._count))
        if closed:
            self._end(worker)
            raise ClosedError("the workers are closed; make new ones")
        return worker

    def _lay(self, worker: Worker) -> None:
        """Make a worker idle; end it if the crew is closed or has enough."""
        with self._lock:
            if not self._closed and len(self._all) <= max(self._wanted, self._count):
                self._idle.append(worker)
                self._lock.notify_all()
                return
        self._discard(worker)

    def _discard(self, worker: Worker) -> None:
        with self._lock:
            self._all.discard(worker)
            self._lock.notify_all()
        self._end(worker)

    def _keep(self) -> None:
        while not self._closed:
            with self._lock:
                dead = [worker for worker in self._idle if worker.poll() is not None]
                self._idle = [worker for worker in self._idle if worker not in dead]
            self._ended(dead)
            rest = _LOOK_SECONDS if self._refilled() else self.REST_SECONDS
            with self._lock:
                self._lock.wait_for(lambda: self._closed, rest)

    def _refilled(self) -> bool:
        """Start the missing workers, all at once. Return whether the crew is complete."""
        with self._lock:
            self._starting = missing = max(0, self._wanted - len(self._all) - self._coming)
        fresh = []
        try:
            for _ in range(missing):
                fresh.append(self._spawned())
            while fresh:
                self._greet(fresh[-1])
                with self._lock:
                    self._starting -= 1
                    self._lay(fresh.pop())
        except Exception as error:
            self._log(
                f"start a worker ahead of its job. It tries again every {self.REST_SECONDS:g} s, and a job that finds "
                "no worker starts its own",
                error,
            )
            self._ended(fresh)
        with self._lock:
            self._starting, whole = 0, not self._starting
            self._lock.notify_all()
        return whole

    def _ended(self, workers: Sequence[Worker]) -> None:
        """Discard workers; log what goes wrong, since jobs wait for what the keeper does next."""
        for worker in workers:
            try:
                self._discard(worker)
            except Exception as error:
                self._log("end a worker. It starts another", error)

    def _log(self, failed: str, error: Exception) -> None:
        """Log the first error of each kind with its traceback: the keeper's errors reach no job."""
        kind = failed, type(error)
        if kind in self._logged or self._closed:
            return
        self._logged.add(kind)
        logger.warning(
            "%s could not %s. Later errors of this kind (%s) are not logged",
            *(type(self).__name__, failed, type(error).__name__),
            exc_info=error,
        )


Crews = TypeVar("Crews", bound=AbstractContextManager)


class Defaults(Generic[Crews]):
    """Crews of this process, up to four workers each, made on first use. A fork makes its own."""

    def __init__(self, make: Callable[[int, bool], Crews]) -> None:
        self._make = make
        self._renew()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._renew)

    def __call__(self, allow_unsandboxed: bool = False) -> Crews:
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
