"""A task's own `check(input, expected, output)`, for tasks with several valid outputs; it runs in a jail."""

import time

from openrlhf_shear.rewards.code.tests import FunctionTests, StdinTests
from openrlhf_shear.rewards.jail.hosts import DiedError, Grade, was_killed

GRACE_SECONDS = 2.0
_SAID = {"true": True, "false": False}  # what a child writes
_MOST_CHARACTERS = 500  # of an error


class CheckerError(RuntimeError):
    """A checker raised, hung or gave no bool: the label is broken."""


class Checker:
    """The checker of some tests, in a process of a jail on the tests' side; a child of it for each call."""

    def __init__(self, process: Grade, tests: StdinTests | FunctionTests, timeout: float, memory_mb: int) -> None:
        self._process, self._tests, self._timeout = process, tests, timeout
        values = isinstance(tests, FunctionTests)
        job = {"kind": "check", "checker": tests.checker, "values": values, "memory_mb": memory_mb}
        process.tell(job, time.monotonic() + GRACE_SECONDS)

    def check(self, at: int, output: object) -> bool:
        """Whether an output is right for test `at`; of a function it is the encoded value (see `inside.plain`).
        Raises CheckerError; DiedError: it was killed.
        """
        if isinstance(self._tests, StdinTests):
            given, expected = self._tests.inputs[at], self._tests.outputs[at]
        else:
            given, expected = self._tests.arguments[at], self._tests.accepted[at][0]
        deadline = time.monotonic() + self._timeout + GRACE_SECONDS
        task = {"input": given, "expected": expected, "output": output, "timeout": self._timeout}
        try:
            self._process.tell(task, deadline)
            ended = self._process.hear(deadline)
        except TimeoutError as error:
            raise CheckerError(f"the label's checker is late for test {at}") from error
        if was_killed(ended, self._timeout):
            raise DiedError("the label's checker was killed from outside: is the machine out of memory?")
        said = _SAID.get(ended["answer"])
        if ended["how"] != "ended" or ended["code"] != 0 or said is None:
            last = [ended["how"], *ended["stderr"].strip().splitlines()][-1]
            raise CheckerError(f"the label's checker gave no answer for test {at}: {last[:_MOST_CHARACTERS]}")
        return said
