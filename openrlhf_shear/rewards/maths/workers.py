"""Maths workers: jailed hosts that can be killed, a few of them, shared by the threads of one process."""

from __future__ import annotations

import atexit
import base64
import os
import subprocess
import threading
import time

from openrlhf_shear.rewards import jail
from openrlhf_shear.rewards.jail.inside import wire

_SCRIPT = jail.INSIDE / "math_worker.py"
_LIMITS = jail.Limits(memory_mb=1024, cpu_seconds=24 * 3600, tmp_mb=1)
_START_SECONDS = 60.0
_GRACE_SECONDS = 2.0
_MOST_SECONDS = 3600.0


class MathWorkers:
    """Hosts that compare two answers with math-verify, each grade in a fresh child (see `inside/math_worker.py`).

    A host starts with the first grade that finds none idle; one that dies or does not answer within the timeout and
    2 s is killed and replaced. Any number of threads may grade: more than `count` wait for their turn, and waiting
    counts towards no timeout.

    Args:
        count: most hosts at a time; each takes about 100 MB.

    Raises:
        ValueError: count is below 1.
    """

    def __init__(self, count: int, allow_unsandboxed: bool = False) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1: got {count}; use the number of cores for rewards, e.g. 2")
        self._allow_unsandboxed = allow_unsandboxed
        self._count = count
        self._turn = threading.BoundedSemaphore(count)
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._all: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def compare(
        self, gold: str, answer: str, timeout: float, tolerance: float | None = None
    ) -> tuple[bool, str | None]:
        """Whether two tidy texts (see `text.tidy`) are equal, and if not, why.

        Reasons: "wrong", "timeout", "unparsable" (the answer), "gold_unparsable", "memory", "worker_died".

        Args:
            timeout: of the comparison itself [s].
            tolerance: absolute, between numbers.

        Raises:
            JailError: no jail works here. RuntimeError: the workers are closed.
        """
        timeout = min(max(timeout, 0.0), _MOST_SECONDS)
        with self._turn:
            host = self._take()
            job = {"gold": gold, "answer": answer, "timeout": timeout, "tolerance": tolerance}
            deadline = time.monotonic() + timeout + _GRACE_SECONDS
            sound = False
            try:
                wire.send(host.stdin.fileno(), job, deadline)
                verdict = wire.receive(host.stdout.fileno(), deadline)
                correct, reason = verdict["correct"] is True, verdict["reason"]
                sound = True
                return correct, reason
            except TimeoutError:
                return False, "timeout"
            except (EOFError, OSError, ValueError, TypeError, KeyError):
                return False, "worker_died"
            finally:
                self._put_back(host, sound)

    def close(self) -> None:
        """Kill every host and wait until no thread uses one. Comparisons under way fail, later ones raise."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._all.difference(idle)
            self._all.clear()
        for host in busy:
            host.kill()  # the thread that waits for it reaps it and closes its pipes
        for host in idle:
            jail.kill(host)
        for _ in range(self._count):
            self._turn.acquire()
        for _ in range(self._count):
            self._turn.release()

    def __enter__(self) -> MathWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            self._check_open()
            host = self._idle.pop() if self._idle else None
        if host is not None and host.poll() is None:
            return host
        if host is not None:
            self._put_back(host, sound=False)
        return self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        found = jail.find_jail(self._allow_unsandboxed)
        host = found.start(_SCRIPT, _LIMITS, packages=True)
        try:
            deadline = time.monotonic() + _START_SECONDS
            wire.send(host.stdin.fileno(), {"no_fork": base64.b64encode(found.no_fork).decode()}, deadline)
            wire.receive(host.stdout.fileno(), deadline)
            with self._lock:
                self._check_open()
                self._all.add(host)
        except (EOFError, OSError, ValueError) as error:
            jail.kill(host)
            raise jail.JailError(
                f"the maths worker did not start: {error!r}; check that `import math_verify` works in this environment"
            ) from error
        except BaseException:
            jail.kill(host)
            raise
        return host

    def _put_back(self, host: subprocess.Popen[bytes], sound: bool) -> None:
        with self._lock:
            if sound and not self._closed:
                self._idle.append(host)
                return
            self._all.discard(host)
        jail.kill(host)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the maths workers are closed; make new ones with MathWorkers(count)")


_default: dict[bool, MathWorkers] = {}
_default_lock = threading.Lock()


def default_workers(allow_unsandboxed: bool = False) -> MathWorkers:
    """The workers of this process, up to four, made on first use; a forked child makes its own."""
    with _default_lock:
        if allow_unsandboxed not in _default:
            _default[allow_unsandboxed] = MathWorkers(min(4, os.cpu_count() or 1), allow_unsandboxed)
        return _default[allow_unsandboxed]


def close_default_workers() -> None:
    """Kill the hosts of this process's default workers; the next grade makes new ones."""
    with _default_lock:
        workers = list(_default.values())
        _default.clear()
    for one in workers:
        one.close()


def _forget_in_child() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    _default.clear()


atexit.register(close_default_workers)
os.register_at_fork(after_in_child=_forget_in_child)
