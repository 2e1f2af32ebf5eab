"""The code reward: runs a response's program against the tests of its problem, in a jail that knows no other grade.

stdin, function   A single process, with a child for each test. Expected results never enter its jail.
                  They are compared here, or by the task's checker in another jail.
assert            Two jails joined by a pipe. The tests, in the second, call the response through handles.

A process that the program ended fails its test. A process that was killed from outside says nothing of the program: the
whole grade is made once more, in fresh jails, and then given up as a failure.
"""

import itertools
import json
import math
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

from openrlhf_shear.rewards.code.checker import TESTS_MB, Checker, CheckerError, NoAnswerError
from openrlhf_shear.rewards.code.hosts import (
    GRACE_SECONDS,
    CodeWorkers,
    DiedError,
    Grade,
    default_workers,
    raise_if_killed,
)
from openrlhf_shear.rewards.code.inside import plain
from openrlhf_shear.rewards.code.tests import AssertTests, FunctionTests, StdinTests, Tests, tests_of
from openrlhf_shear.rewards.code.text import code_block, defines, needs_packages, readable, same_output, same_value
from openrlhf_shear.rewards.grader import Grader, Limits, Sample
from openrlhf_shear.rewards.jail import Jail, find_jail
from openrlhf_shear.rewards.verdict import Failure, Outcome, Reason, Verdict

MAX_CODE = 1 << 20  # characters
MAX_VALUE = 4 << 20  # characters of JSON of a returned value
LEAST_CHECK = 1.0  # seconds of a checker, even if a task's tests have used up their time
LEAST_TOTAL, TIMEOUTS = 30.0, 6  # limit of all tests together: at least so many seconds, and so many timeouts
_UNPARSED = ("SyntaxError", "IndentationError", "TabError")  # Python's words for a text that is no program
_JUDGE_MB = 1280  # MiB of a judge, at least
_DEEPEST = 4 * plain.MAX_DEPTH  # brackets around a part of a value's JSON; a level of the value has up to three
_PARTS, _STEPS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL), {"[": 1, "{": 1, "]": -1, "}": -1}

Tested = tuple[Outcome, str]  # an outcome and its detail


class _OverError(RuntimeError):
    """No further test can be run, because of the program or the tests."""


def grade_code(
    response: str,
    tests: str | dict | Tests,
    *,
    timeout: float = 10.0,
    total: float | None = None,
    memory_mb: int = 1024,
    extract: bool = True,
    allow_unsandboxed: bool = False,
    workers: CodeWorkers | None = None,
) -> Verdict:
    """Run a response's code against tests. Thread-safe. Leaves no files, and no processes but idle jails.

    Args:
        tests: see `tests_of`.
        timeout: limit of each test [s]; of all of them together for assert-style tests.
        total: limit of all tests together [s]. Tests that it leaves no time for count as timed out. None for six
            timeouts, at least 30 s.
        memory_mb: address space of the response's process [MiB].
        extract: take the last fenced block of the response (all of it without a fence); else all of the response is
            code.
        workers: workers whose jails to use; default: this process's, made on first use.

    The verdict has `outcomes`; tests after the first that does not pass are NOT_RUN. Its reason is the outcome of that
    test, or NO_CODE, or TOO_LONG. It is a failure if a process was killed from outside twice in a row, or if the
    label's checker is broken.

    Raises:
        ValueError: the tests, timeout, total or memory_mb are malformed; no response raises.
        JailError: no jail works here (see `find_jail`), or it stopped working.
    """
    if not 0 < timeout < math.inf or not memory_mb >= 64:
        raise ValueError(
            f"timeout must be above 0 s and memory_mb at least 64: got {timeout}, {memory_mb}; use 10, 1024"
        )
    total = max(LEAST_TOTAL, TIMEOUTS * timeout) if total is None else total
    if not 0 < total < math.inf:
        raise ValueError(f"total must be above 0 s: got {total}; use e.g. 60")
    began = time.monotonic()
    tests = tests_of(tests)
    jail = find_jail(allow_unsandboxed)
    text = response if isinstance(response, str) else ""
    fenced = code_block(text, tests.run) if extract else text
    code = readable(text if fenced is None else fenced)
    if len(code) > MAX_CODE or not code.strip():
        reason = Reason.TOO_LONG if code.strip() else Reason.NO_CODE
        return Verdict(False, reason, outcomes=(Outcome.NOT_RUN,) * len(tests), seconds=time.monotonic() - began)
    workers = workers or default_workers(allow_unsandboxed)
    grade = _Grade(jail, workers, code, tests, (timeout, total), memory_mb)
    try:
        try:
            outcomes = grade.outcomes()
        except DiedError:
            workers.renew()
            outcomes = grade.outcomes()
    except (DiedError, CheckerError) as error:
        failure = Failure.JAIL_DIED if isinstance(error, DiedError) else Failure.CHECKER_FAILED
        return Verdict(None, failure=failure, detail=str(error)[:500], seconds=time.monotonic() - began)
    last, detail = outcomes[-1]
    reason = None if last == Outcome.PASSED else Reason(last)
    if fenced is None and reason == Reason.ERROR and detail.startswith(_UNPARSED):
        reason = Reason.NO_CODE  # prose
    names = (*(name for name, _ in outcomes), *[Outcome.NOT_RUN] * (len(tests) - len(outcomes)))
    return Verdict(reason is None, reason, detail=detail[:500], outcomes=names, seconds=time.monotonic() - began)


class _Grade:
    """A grade under way."""

    def __init__(
        self,
        jail: Jail,
        workers: CodeWorkers,
        code: str,
        tests: Tests,
        seconds: tuple[float, float],
        memory_mb: int,
    ) -> None:
        self._workers, self._tests = workers, tests
        self._timeout, self._total = seconds
        sources = [code]
        if isinstance(tests, AssertTests) and tests.prompt:  # a response that only completes the prompt runs below it
            whole = defines(code, tests.entry_point)
            sources = [tests.helpers, code] if whole else [f"{tests.prompt}\n{code}"]
        self._packages = any(map(needs_packages, sources))
        self._job = {
            "kind": {StdinTests: "stdin", FunctionTests: "function", AssertTests: "serve"}[type(tests)],
            "sources": sources,
            "prelude": isinstance(tests, FunctionTests) or (isinstance(tests, AssertTests) and tests.leetcode),
            "no_fork": jail.no_fork,
            "threads": jail.threads,
            "memory_mb": memory_mb,
            "cpu_seconds": math.ceil(self._timeout) + 1,
        }
        self.started = time.monotonic()

    def outcomes(self) -> list[Tested]:
        """Return the outcomes of the tests, up to the first that does not pass. Raises DiedError, CheckerError."""
        outcomes: list[Tested] = []
        with ExitStack() as stack:  # ends the processes
            try:
                for outcome in (self._asserts if isinstance(self._tests, AssertTests) else self._one_by_one)(stack):
                    outcomes.append(outcome)
                    if outcome[0] != Outcome.PASSED:
                        break
            except TimeoutError:
                late = f"test {len(outcomes)}: the jail was ended from outside, after {self._timeout:g} s"
                outcomes.append((Outcome.TIMEOUT, late))
            except _OverError as error:
                outcomes.append((Outcome.ERROR, f"test {len(outcomes)}: {error}"))
        return outcomes

    def _one_by_one(self, stack: ExitStack) -> Iterator[Tested]:
        """Yield the outcomes of stdin or function tests. Raises TimeoutError: the process in the jail is late."""
        tests = self._tests
        runner = self._start(stack, "responses", self._packages)
        runner.tell(self._job, time.monotonic() + GRACE_SECONDS)
        checker = None
        if tests.checker:
            process = self._start(stack, "tests", needs_packages(tests.checker))
            checker = Checker(process, tests, self._timeout, self._job)
        last = self.started + self._total
        for at in range(len(tests)):
            timeout = min(self._timeout, last - time.monotonic())
            if timeout <= 0:
                yield Outcome.TIMEOUT, f"test {at}: the tests took {self._total:g} s together"
                return
            if isinstance(tests, StdinTests):
                test = {"stdin": tests.inputs[at]}
            else:
                test = {"call": tests.name, "arguments": [plain.encode(argument) for argument in tests.arguments[at]]}
            try:
                ended = runner.run(test, timeout, "the program")
            except DiedError:
                if runner.end(gone=True)["overfull"]:
                    raise _OverError("the program made too many files") from None
                raise
            left = min(self._timeout, max(last - time.monotonic(), LEAST_CHECK))
            yield _judged(tests, at, ended, checker, left)

    def _asserts(self, stack: ExitStack) -> Iterator[Tested]:
        """Yield the outcomes of assert-style tests, which all run without another request. Raises as `_one_by_one`."""
        tests = self._tests
        (calls_in, calls_out), (replies_in, replies_out) = os.pipe(), os.pipe()
        with ExitStack() as pipes:
            for fd in (calls_in, calls_out, replies_in, replies_out):
                pipes.callback(os.close, fd)
            packages = any(map(needs_packages, (tests.helpers, tests.setup, *tests.tests)))
            solver = self._start(stack, "responses", self._packages, calls_in, replies_out)
            judge = self._start(stack, "tests", packages, calls_out, replies_in)
        deadline = self.started + min(self._timeout, self._total)
        solver.tell(self._job, deadline)
        memory_mb = max(self._job["memory_mb"] + TESTS_MB, _JUDGE_MB)
        judge.tell(vars(tests) | {"kind": "judge", "memory_mb": memory_mb}, deadline)
        for _ in tests.tests:
            try:
                report = judge.hear(deadline)
            except DiedError:
                code = judge.end(gone=True)["code"]
                if code in (None, -signal.SIGKILL):
                    raise
                raise _OverError(f"the tests ended their own process: exit code {code}") from None
            if report["gone"]:
                ended = solver.end(gone=True)
                raise_if_killed(ended, self._timeout, "the program")
                if ended["overfull"]:
                    raise _OverError("the program made too many files")
            yield Outcome(report["outcome"]), report["detail"]

    def _start(self, stack: ExitStack, side: str, packages: bool, *pipes: int) -> Grade:
        """Start a process on a side, for code that needs packages or not."""
        process = stack.enter_context(self._workers.hosts(side, packages).grade(*pipes))
        self.started = time.monotonic()
        return process


def _judged(tests: StdinTests | FunctionTests, at: int, ended: dict, checker: Checker | None, left: float) -> Tested:
    """Return the outcome of test `at`; the label's checker, if there is one, has `left` seconds."""
    if ended["how"] != "ended":
        return Outcome(ended["how"]), f"test {at}"
    if ended["code"] != 0:
        lines = ended["stderr"].strip().splitlines() or [f"test {at}: exit code {ended['code']}"]
        return Outcome.MEMORY if lines[-1].startswith("MemoryError") else Outcome.ERROR, lines[-1]
    if isinstance(tests, StdinTests):
        output, shown = ended["stdout"], f"test {at}: printed {ended['stdout'][:200]!r}"
    elif len(ended["answer"]) > MAX_VALUE:
        return Outcome.OUTPUT_LIMIT, f"test {at}: the value is too large"
    else:
        shown = f"test {at}: returned {ended['answer'][:200]}"
        try:
            depths = itertools.accumulate(_STEPS.get(part, 0) for part in _PARTS.findall(ended["answer"]))
            if max(depths, default=0) > _DEEPEST:
                raise ValueError("nested too deeply")
            output = json.loads(ended["answer"])
        except ValueError:
            return Outcome.ERROR, f"test {at}: {tests.name} gave no plain value"
    try:
        if checker:
            is_right = checker.check(at, output, left)
        elif isinstance(tests, StdinTests):
            is_right = same_output(tests.outputs[at], output)
        else:
            is_right = any(same_value(wanted, output) for wanted in tests.accepted[at])
    except NoAnswerError as error:
        return Outcome.TIMEOUT if error.late else Outcome.WRONG_ANSWER, f"{shown}; {error}"
    return (Outcome.PASSED, "") if is_right else (Outcome.WRONG_ANSWER, shown)


def _grade(sample: Sample, limits: Limits, workers: CodeWorkers) -> Verdict:
    return grade_code(
        sample.response,
        sample.label,
        timeout=limits.seconds,
        memory_mb=limits.memory_mb,
        allow_unsandboxed=limits.allow_unsandboxed,
        workers=workers,
    )


def _label_problem(label: object) -> str | None:
    if not isinstance(label, str | dict):
        return f"is no tests but {label!r:.80}"
    try:
        tests_of(label)
    except ValueError as error:
        return f"is no tests ({' '.join(str(error).split())})"
    return None


CODE = Grader(
    name="code",
    title="Code generation",
    about="runs the response's program on the label's tests, in a jail",
    grade=_grade,
    label_problem=_label_problem,
    example=("```python\nprint(42)\n```", {"inputs": [""], "outputs": ["42\n"]}),
    nothing=Reason.NO_CODE,
    start_workers=CodeWorkers,
    seconds=10.0,
    timed="a test of a program",
    has_tests=True,
    has_answer=False,
)
