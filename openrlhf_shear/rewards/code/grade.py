"""`grade_code`: a response's program against the tests of its problem, in a jail made for this one grade.

stdin, function   one jail, a child for each test. Expected results never enter it: they are compared here.
assert            two jails joined by a pipe: the tests, in the other one, call the response through handles.
"""

import json
import math
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack

from openrlhf_shear.rewards.code.tests import AssertTests, FunctionTests, StdinTests, Tests, tests_of
from openrlhf_shear.rewards.code.text import code_block, defines, needs_packages, same_output, same_value
from openrlhf_shear.rewards.jail import INSIDE, Jail, Limits, find_jail, greet, hear, kill, tell
from openrlhf_shear.rewards.jail.inside import plain
from openrlhf_shear.rewards.jobs import killable
from openrlhf_shear.rewards.verdict import Verdict

MAX_CODE = 1 << 20  # characters
MAX_VALUE = 4 << 20  # characters of JSON of a returned value
GRACE_SECONDS = 2.0
_RUNNER_MB = 256

Outcome = tuple[str, str]


def grade_code(
    response: str,
    tests: str | dict | Tests,
    *,
    timeout: float = 10.0,
    memory_mb: int = 1024,
    stop_at_failure: bool = True,
    extract: bool = True,
    allow_unsandboxed: bool = False,
) -> Verdict:
    """Run a response's code against tests. May be called from several threads; leaves no process or file behind.

    Args:
        tests: see `tests_of`.
        timeout: of each test [s]; of all of them together for assert-style tests.
        memory_mb: address space of the response's process [MiB].
        stop_at_failure: report the tests after the first failure as not_run.
        extract: take the last fenced block of the response (all of it without a fence); else it is code as it is.

    The verdict has `outcomes`; its reason is the first one that is not passed, or no_code, too_long.

    Raises:
        ValueError: the tests, timeout or memory_mb are malformed; no response raises.
        JailError: no jail works here (see `find_jail`), or it stopped working.
    """
    if not 0 < timeout < math.inf or not memory_mb >= 64:
        raise ValueError(
            f"timeout must be above 0 s and memory_mb at least 64: got {timeout}, {memory_mb}; use 10, 1024"
        )
    began = time.monotonic()
    tests = tests_of(tests)
    jail = find_jail(allow_unsandboxed)
    text = response if isinstance(response, str) else ""
    fenced = code_block(text) if extract else text
    code = text if fenced is None else fenced
    if len(code) > MAX_CODE or not code.strip():
        reason = "too_long" if code.strip() else "no_code"
        return Verdict(False, reason, outcomes=("not_run",) * len(tests), seconds=time.monotonic() - began)
    grade, outcomes = _Grade(jail, code, tests, timeout, memory_mb), []
    with ExitStack() as stack:
        for outcome in grade.run(stack):
            outcomes.append(outcome)
            if outcome[0] != "passed" and stop_at_failure:
                break
    outcomes += [("not_run", "")] * (len(tests) - len(outcomes))
    reason, detail = next((outcome for outcome in outcomes if outcome[0] != "passed"), (None, ""))
    if fenced is None and reason == "error" and detail.startswith(("SyntaxError", "IndentationError", "TabError")):
        reason = "no_code"  # prose
    names, times = tuple(name for name, _ in outcomes), (time.monotonic() - began, grade.started - began)
    return Verdict(reason is None, reason, detail=detail, outcomes=names, seconds=times[0], startup_seconds=times[1])


class _Grade:
    """One grade under way."""

    def __init__(self, jail: Jail, code: str, tests: Tests, timeout: float, memory_mb: int) -> None:
        self._jail, self._tests, self._timeout = jail, tests, timeout
        self._memory_mb, self._packages = memory_mb, needs_packages(code)
        sources = [code]
        if isinstance(tests, AssertTests) and tests.prompt:  # a response that only completes it is run below it
            whole = defines(code, tests.entry_point)
            sources = [tests.prompt, code] if whole else [f"{tests.prompt}\n{code}"]
        self._job = {
            "kind": {StdinTests: "stdin", FunctionTests: "function", AssertTests: "serve"}[type(tests)],
            "sources": sources,
            "prelude": isinstance(tests, FunctionTests) or (isinstance(tests, AssertTests) and tests.leetcode),
            "no_fork": jail.no_fork,
            "memory_mb": memory_mb,
            "cpu_seconds": math.ceil(timeout) + 1,
        }
        self.started = time.monotonic()

    def run(self, stack: ExitStack) -> Iterator[Outcome]:
        """Test by test, in jails that end with `stack`. Once a jail is gone, it is for all later tests too."""
        outcomes = (self._asserts if isinstance(self._tests, AssertTests) else self._one_by_one)(stack)
        gone: Outcome | None = None
        for at in range(len(self._tests)):
            if gone is None:
                try:
                    outcome = next(outcomes)
                except TimeoutError:
                    gone = ("timeout", f"test {at}: the jail was ended from outside, after {self._timeout:g} s")
                except (EOFError, OSError, ValueError) as error:
                    gone = ("error", f"test {at}: a jail is gone ({error})")
            name, detail = gone or outcome
            yield name, detail[:500]

    def _one_by_one(self, stack: ExitStack) -> Iterator[Outcome]:
        """Raises where the runner is gone or late."""
        tests = self._tests
        runner = self._start(stack, "solver.py", self._memory_mb, self._packages)
        self._greet(runner)
        last = self.started + self._timeout * len(tests) + GRACE_SECONDS
        for at in range(len(tests)):
            deadline = min(last, time.monotonic() + self._timeout + GRACE_SECONDS)
            if at == 0:
                tell(runner, self._job, deadline)
            if isinstance(tests, StdinTests):
                test = {"stdin": tests.inputs[at]}
            else:
                test = {"call": tests.name, "arguments": [plain.encode(argument) for argument in tests.arguments[at]]}
            tell(runner, test | {"timeout": self._timeout}, deadline)
            yield _judged(tests, at, hear(runner, deadline))

    def _asserts(self, stack: ExitStack) -> Iterator[Outcome]:
        """As `_one_by_one`; the tests run on their own from the first on."""
        tests = self._tests
        (calls_in, calls_out), (replies_in, replies_out) = os.pipe(), os.pipe()
        with ExitStack() as pipes:
            for fd in (calls_in, calls_out, replies_in, replies_out):
                pipes.callback(os.close, fd)
            packages = any(map(needs_packages, (tests.setup, *tests.tests)))
            judge = self._start(stack, "judge.py", max(self._memory_mb, 1024), packages, (calls_out, replies_in))
            solver = self._start(stack, "solver.py", self._memory_mb, self._packages, (calls_in, replies_out))
        self._greet(judge)
        self._greet(solver)
        deadline = self.started + self._timeout
        tell(solver, self._job | {"calls": calls_in, "replies": replies_out}, deadline)
        tell(judge, vars(tests) | {"calls": calls_out, "replies": replies_in}, deadline)
        while True:
            said = hear(judge, deadline)
            yield said["outcome"], said["detail"]

    def _start(
        self, stack: ExitStack, script: str, memory_mb: int, packages: bool, pass_fds: tuple[int, ...] = ()
    ) -> subprocess.Popen[bytes]:
        limits = Limits(memory_mb + _RUNNER_MB, math.ceil(self._timeout * len(self._tests)) + 10)
        process = self._jail.start(INSIDE / script, limits, packages=packages, pass_fds=pass_fds)
        stack.callback(kill, process)
        stack.enter_context(killable(process.kill))
        return process

    def _greet(self, process: subprocess.Popen[bytes]) -> None:
        greet(process, "a jail", "see if the machine is overloaded")
        self.started = time.monotonic()


def _judged(tests: StdinTests | FunctionTests, at: int, ended: dict) -> Outcome:
    if ended["how"] != "ended":
        return ended["how"], f"test {at}"
    if ended["code"] != 0:
        lines = ended["stderr"].strip().splitlines() or [f"test {at}: exit code {ended['code']}"]
        return "memory" if lines[-1].startswith("MemoryError") else "error", lines[-1]
    if isinstance(tests, StdinTests):
        right = same_output(tests.outputs[at], ended["stdout"])
        return ("passed", "") if right else ("wrong_answer", f"test {at}: printed {ended['stdout'][:200]!r}")
    if len(ended["answer"]) > MAX_VALUE:
        return "output_limit", f"test {at}: the value is too large"
    try:
        message = json.loads(ended["answer"])
    except (ValueError, RecursionError):
        return "error", f"test {at}: {tests.name} gave no plain value"
    right = any(same_value(wanted, message) for wanted in tests.accepted[at])
    return ("passed", "") if right else ("wrong_answer", f"test {at}: returned {ended['answer'][:200]}")
