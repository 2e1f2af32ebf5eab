"""Jails that wait for programs, a few of each kind, so that a grade starts with a fork.

Each grade has separate processes and pipes, and knows nothing of others. A host is replaced after `most` grades, after
a grade that wrote files, and if anything about it is in doubt. The other side is `inside/host.py`.
"""

import contextlib
import itertools
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from openrlhf_shear.rewards.crew import Crew, Defaults
from openrlhf_shear.rewards.jail import Jail, Limits, find_jail
from openrlhf_shear.rewards.jail.inside import wire

_SCRIPT = Path(__file__).parent / "inside" / "host.py"
_LIMITS = Limits(memory_mb=1 << 20, cpu_seconds=24 * 3600)  # of the host; the processes it runs lower their own
GRACE_SECONDS = 10.0  # beyond a time limit, for a jail to answer
_END_SECONDS = 5.0  # for a host to check that nothing of a grade is left


class DiedError(RuntimeError):
    """A process of a jail was killed from outside, by a person or the kernel: no program could have ended it."""


class Host:
    """A jail in which processes are forked, a single grade at a time.

    Raises JailError: it could not be started.
    """

    def __init__(self, sandbox: Jail, packages: bool = False) -> None:
        self.grades = 0
        self.control, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = sandbox.start(_SCRIPT, _LIMITS, packages=packages, stdin=theirs.fileno())
            except BaseException:
                self.control.close()
                raise
        with contextlib.suppress(OSError):  # it has ended: `greet` says so
            # Without separate namespaces it cannot make sure that nothing of a grade is left: it is never clean.
            wire.send(self.control.fileno(), {"alone": sandbox.is_sandbox})
        self.poll, self.greet, self.kill = self.process.poll, self.process.greet, self.process.kill

    def end(self) -> None:
        self.control.close()  # tells the host to end
        self.process.end()


class Grade:
    """A process in a host, for a single grade, and the pipes to it."""

    def __init__(self, host: Host, pipes: tuple[int, ...] = ()) -> None:
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
        """Send a message. Raises TimeoutError; DiedError: the process is gone; ValueError: the message is too large."""
        try:
            wire.send(self._sends, message, deadline)
        except BrokenPipeError as error:
            raise DiedError("a process of a jail is gone") from error

    def hear(self, deadline: float) -> dict:
        """Return the next message. Raises TimeoutError; DiedError: the process is gone."""
        try:
            return wire.receive(self._hears, deadline)
        except EOFError as error:
            raise DiedError("a process of a jail is gone") from error

    def run(self, test: dict, timeout: float, what: str) -> dict:
        """Run a test in a child, `what`, and return how that ended (`inside.runner`).

        Raises:
            TimeoutError: the process is late.
            DiedError: it is gone, or its child was killed from outside.
        """
        deadline = time.monotonic() + timeout + GRACE_SECONDS
        self.tell(test | {"timeout": timeout}, deadline)
        ended = self.hear(deadline)
        if ended["how"] == "ended":
            raise_if_killed(ended, timeout, what)
        return ended

    def end(self, gone: bool = False) -> dict:
        """End the process with all that it started. May be called again.

        Args:
            gone: it has ended, or closed its pipes.

        Returns:
            Its exit `code` (None: it was ended now) and processor time `cpu` [s]; whether the jail is `clean`; and
                whether the jail ended it because it made too many files, `overfull`.

        Raises:
            DiedError: the jail is gone.
        """
        if self._how is None:
            link, deadline = self._host.control.fileno(), time.monotonic() + _END_SECONDS
            try:
                wire.send(link, {"gone": gone}, deadline)
                self._how = self._host.process.hear(deadline)
            except (EOFError, OSError, ValueError) as error:
                raise DiedError(f"a jail is gone: {error}") from error
        return self._how

    def is_clean(self) -> bool:
        """End the process, and return whether the jail is as it was before."""
        try:
            return self.end()["clean"]
        except DiedError:
            return False

    def close(self) -> None:
        os.close(self._sends)
        os.close(self._hears)


def raise_if_killed(how: dict, seconds: float, what: str) -> None:
    """Raise DiedError if a process ended by SIGKILL before it had used its processor time [s].

    At the end of that time the kernel sends SIGKILL. The jail sends it to a program with too many files. A program
    cannot send it to itself.
    """
    if how["code"] == -signal.SIGKILL and how["cpu"] < seconds and not how.get("overfull"):
        raise DiedError(f"{what} was killed from outside: is the machine out of memory?")


MOST_GRADES = 500


class Hosts(Crew):
    """Hosts of the same kind."""

    def __init__(self, count: int, packages: bool, most: int, allow_unsandboxed: bool) -> None:
        super().__init__(count, lambda: Host(find_jail(allow_unsandboxed), packages))
        self._most = most

    @contextmanager
    def grade(self, *pipes: int) -> Iterator[Grade]:
        """Lend a process for a single grade, which also keeps these pipes."""
        with self._lent() as host, contextlib.closing(Grade(host, pipes)) as grade:
            yield grade
            host.grades += 1
            if host.grades >= self._most or not grade.is_clean():
                host.end()  # a dead host is not lent again


class CodeWorkers(AbstractContextManager):
    """Up to `count` hosts of each kind: for responses and for tests, with and without packages.

    With `most` 1, each grade has a fresh jail.
    """

    def __init__(self, count: int, allow_unsandboxed: bool = False, most: int = MOST_GRADES) -> None:
        kinds = itertools.product(("responses", "tests"), (False, True))
        self._kinds = {(side, packages): Hosts(count, packages, most, allow_unsandboxed) for side, packages in kinds}

    def hosts(self, side: str, packages: bool) -> Hosts:
        """Return the hosts of a kind; `side` is "responses" or "tests"."""
        return self._kinds[side, packages]

    def renew(self) -> None:
        """Give later grades fresh jails."""
        for hosts in self._kinds.values():
            hosts.renew()

    def close(self) -> None:
        """End every process and wait for it. Grades under way fail; later grades raise `ClosedError`."""
        for hosts in self._kinds.values():
            hosts.close()

    def __exit__(self, *_: object) -> None:
        self.close()


default_workers = Defaults(CodeWorkers)  # hosts start with the first grades
