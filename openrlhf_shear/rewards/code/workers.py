"""Jails that wait for programs, so that a grade starts with a fork; each grade has processes and pipes of its own.

A host (`inside/host.py`) forks a process for a grade, which the next grade's knows nothing of. It is replaced after
`most` grades, where a grade wrote files, and where anything about it is in doubt.
"""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from openrlhf_shear.rewards import jail
from openrlhf_shear.rewards.crew import Crew, Defaults
from openrlhf_shear.rewards.jail.inside import wire

MOST_GRADES = 500
_SCRIPT = jail.INSIDE / "host.py"
_LIMITS = jail.Limits(memory_mb=1 << 20, cpu_seconds=24 * 3600)  # of the host; what it runs lowers its own
_END_SECONDS = 5.0  # for a host to see that nothing is left


class DiedError(RuntimeError):
    """A process of a jail is gone that no program could have ended: killed from outside, by a person or the kernel."""


class Host:
    """A jail that is ready, as what `Crew` lends."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.process, self.control, self.grades = process, control, 0

    def poll(self) -> int | None:
        return self.process.poll()

    def end(self) -> None:
        self.control.close()  # the end of the host's work
        jail.kill(self.process)


class Grade:
    """A process in a host, for one grade, and the pipes to it."""

    def __init__(self, host: Host, pipes: tuple[int, ...]) -> None:
        self._host, self._how = host, None
        theirs, self._sends = os.pipe()
        self._hears, also_theirs = os.pipe()
        try:
            socket.send_fds(host.control, [b"g"], [theirs, also_theirs, *pipes])
        except OSError as error:
            self.close()
            raise DiedError(f"a jail is gone: {error}") from error
        finally:
            os.close(theirs)
            os.close(also_theirs)

    def tell(self, message: object, deadline: float) -> None:
        """Raises TimeoutError; DiedError: the process is gone; ValueError: the message is too large."""
        try:
            wire.send(self._sends, message, deadline)
        except BrokenPipeError as error:
            raise DiedError("a process of a jail is gone") from error

    def hear(self, deadline: float) -> dict:
        """Raises TimeoutError; DiedError: the process is gone."""
        try:
            return wire.receive(self._hears, deadline)
        except EOFError as error:
            raise DiedError("a process of a jail is gone") from error

    def end(self, gone: bool = False) -> dict:
        """End the process with all that it started: its exit `code` (None: it was ended now), the processor time `cpu`
        [s], and whether the jail is `clean`. May be called again.

        Args:
            gone: it has ended, or closed its pipes.

        Raises:
            DiedError: the jail is gone.
        """
        if self._how is None:
            link, deadline = self._host.control.fileno(), time.monotonic() + _END_SECONDS
            try:
                wire.send(link, {"gone": gone}, deadline)
                self._how = jail.hear(self._host.process, deadline)
            except (EOFError, OSError, ValueError) as error:
                raise DiedError(f"a jail is gone: {error}") from error
        return self._how

    def is_clean(self) -> bool:
        """End it, and see whether the jail is as it was before."""
        try:
            return self.end()["clean"]
        except DiedError:
            return False

    def close(self) -> None:
        os.close(self._sends)
        os.close(self._hears)


def was_killed(how: dict, seconds: float) -> bool:
    """Whether a process ended by SIGKILL before it had used its processor time [s], at the end of which the kernel
    sends it. A program cannot send it to itself.
    """
    return how["code"] == -signal.SIGKILL and how["cpu"] < seconds


class Hosts(Crew):
    """Hosts of one kind."""

    def __init__(self, count: int, packages: bool, most: int, allow_unsandboxed: bool) -> None:
        super().__init__(count)
        self._packages, self._most, self._allow_unsandboxed = packages, most, allow_unsandboxed

    @contextmanager
    def grade(self, *pipes: int) -> Iterator[Grade]:
        """A process for one grade, that keeps these pipes as well."""
        with self._lent() as host, contextlib.closing(Grade(host, pipes)) as grade:
            yield grade
            host.grades += 1
            if host.grades >= self._most or not grade.is_clean():
                host.end()  # and is not lent again

    def renew(self) -> None:
        """End the hosts that wait; later grades have new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for host in idle:
            self._discard(host)

    def _spawn(self) -> Host:
        mine, theirs = socket.socketpair()
        try:
            start = jail.find_jail(self._allow_unsandboxed).start
            return Host(start(_SCRIPT, _LIMITS, packages=self._packages, stdin=theirs.fileno()), mine)
        except BaseException:
            mine.close()
            raise
        finally:
            theirs.close()

    def _greet(self, host: Host) -> None:
        jail.greet(host.process, "a jail", "see if the machine is overloaded")
        # Without namespaces of its own a host cannot see to it that nothing is left of a grade: it is never clean.
        alone = jail.find_jail(self._allow_unsandboxed).is_sandbox
        wire.send(host.control.fileno(), {"alone": alone}, time.monotonic() + _END_SECONDS)

    def _kill(self, host: Host) -> None:
        host.process.kill()

    def _end(self, host: Host) -> None:
        host.end()


class CodeWorkers(AbstractContextManager):
    """Up to `count` hosts of each kind: for responses and for tests, with and without packages."""

    def __init__(self, count: int, allow_unsandboxed: bool = False, most: int = MOST_GRADES) -> None:
        """
        Args:
            most: grades of a host; 1 for a fresh jail each time.
        """
        kinds = itertools.product(("responses", "tests"), (False, True))
        self._kinds = {(side, packages): Hosts(count, packages, most, allow_unsandboxed) for side, packages in kinds}

    def hosts(self, side: str, packages: bool) -> Hosts:
        """Of one kind; `side` is "responses" or "tests"."""
        return self._kinds[side, packages]

    def renew(self) -> None:
        """Give later grades fresh jails."""
        for hosts in self._kinds.values():
            hosts.renew()

    def close(self) -> None:
        """End every process and wait for it. Grades under way fail, later ones raise `ClosedError`."""
        for hosts in self._kinds.values():
            hosts.close()

    def __exit__(self, *_: object) -> None:
        self.close()


_default = Defaults(lambda allow_unsandboxed: CodeWorkers(min(4, os.cpu_count() or 1), allow_unsandboxed))


def default_workers(allow_unsandboxed: bool = False) -> CodeWorkers:
    """Those of this process, whose hosts start with the first grades."""
    return _default[allow_unsandboxed]


def close_default_workers() -> None:
    """End the jails of this process's default workers; the next grade makes new ones."""
    _default.close()
