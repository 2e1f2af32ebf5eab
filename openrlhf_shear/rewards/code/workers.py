"""Jails that the code grades of a process share: hosts that are ready, a few of each kind.

A host forks a process for a grade; the next grade's process knows nothing of it. A host is replaced after `most`
grades, after a grade that wrote files, and if anything about it is in doubt.
"""

import contextlib
import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from openrlhf_shear.rewards.code.hosts import Grade, Host
from openrlhf_shear.rewards.crew import Crew, Defaults
from openrlhf_shear.rewards.jail import find_jail

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
    """Up to `count` hosts of each kind: for responses and for tests, with and without packages."""

    def __init__(self, count: int, allow_unsandboxed: bool = False, most: int = MOST_GRADES) -> None:
        """
        Args:
            most: grades of a host; 1 for a fresh jail each time.
        """
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
