"""A task's own `check(input, expected, output)`, for tasks with several valid outputs. It runs in a jail.

An output may be made to break its checker. Such an output is wrong, and the label is not at fault, as long as the
checker answers for the expected output.
"""

import time

from openrlhf_shear.rewards.code.hosts import GRACE_SECONDS, Grade
from openrlhf_shear.rewards.code.inside import plain
from openrlhf_shear.rewards.code.tests import FunctionTests, StdinTests

TESTS_MB = 256  # MiB beyond a program's, for the processes that handle its values
_SAID = {"true": True, "false": False}  # the answers that a child writes
_MOST_CHARACTERS = 500  # of an error


class CheckerError(RuntimeError):
    """The label is broken: its checker raised, hung or gave no bool."""


class NoAnswerError(RuntimeError):
    """The output is wrong: its checker gives no answer for it, but does for the expected output."""

    def __init__(self, late: bool, detail: str) -> None:
        super().__init__(f"the label's checker gave no answer for this output: {detail}")
        self.late, self.detail = late, detail


class Checker:
    """Checker of some tests, in a process of a jail on the tests' side: a function that a child calls for each test."""

    def __init__(self, process: Grade, tests: StdinTests | FunctionTests, timeout: float, program: dict) -> None:
        self._process, self._tests, self._timeout = process, tests, timeout  # of a call of the control [s]
        job = program | {"kind": "function", "sources": [tests.checker], "prelude": False}
        job["memory_mb"] += TESTS_MB
        process.tell(job, time.monotonic() + GRACE_SECONDS)

    def check(self, at: int, output: object, timeout: float) -> bool:
        """Return whether an output is right for test `at`.

        Args:
            output: the encoded text, or value of a function (see `inside.plain`).
            timeout: the rest of the program's time [s].

        Raises:
            NoAnswerError, CheckerError.
            DiedError: the checker was killed.
        """
        try:
            return self._answer(at, output, timeout)
        except NoAnswerError as error:
            try:
                self._answer(at, self._of_test(at)[1], self._timeout)  # the expected output, as a control
            except NoAnswerError:
                raise CheckerError(f"the label's checker gave no answer for test {at}: {error.detail}") from None
            raise

    def _of_test(self, at: int) -> tuple[object, object]:
        """Return the encoded input and expected output of a test."""
        if isinstance(self._tests, StdinTests):
            return self._tests.inputs[at], self._tests.outputs[at]
        return plain.encode([*self._tests.arguments[at]]), plain.encode(self._tests.expected(at))

    def _answer(self, at: int, output: object, timeout: float) -> bool:
        try:
            task = {"call": "check", "arguments": [*self._of_test(at), output]}
            ended = self._process.run(task, timeout, "the label's checker")
        except TimeoutError as error:
            raise CheckerError(f"the label's checker is late for test {at}") from error
        answer = _SAID.get(ended["answer"])
        if ended["how"] != "ended" or ended["code"] != 0 or answer is None:
            said = [f"check must return True or False: got {ended['answer']}"] if ended["answer"] else []
            last = [ended["how"], *said, *ended["stderr"].strip().splitlines()][-1]
            raise NoAnswerError(ended["how"] == "timeout", last[:_MOST_CHARACTERS])
        return answer
