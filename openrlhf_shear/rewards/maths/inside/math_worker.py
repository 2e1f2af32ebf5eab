"""Compares answers with math-verify inside a jail: a host imports it once, and forks children that compare.

A child compares many pairs in turn, so that the parser and sympy stay warm. A comparison cannot affect the next: an
answer is data for a LaTeX grammar, checked by a whitelist, and never evaluated. It leaves only caches of pure
functions, and memory, in the child. A child ends after `_MOST` comparisons, when it has grown, and after any exception.
A pair that runs out of memory or kills its child is tried once more in a fresh child, so that no answer pays for
another.
"""

import contextlib
import gc
import itertools
import os
import re
import resource
import select
import signal
import sys
import time
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # python -I leaves it out
sys.path.insert(1, os.path.join(sys.path[0], "..", "..", "jail", "inside"))  # here and in a jail

import runner
import wire
from equality import compare

_FILES = 16
_SPARE_SECONDS = 2.0
_MOST = 1000  # comparisons of a child
_GROWN = 200 << 10  # KiB that a child may have more than its host
_GARBAGE = 50_000  # objects between two collections, which copy the host's pages
# Pairs that teach the parser its grammar and fill sympy's caches: each saves every child some 10 ms.
_WARM_UP = r"""
\frac{1}{2}\sqrt{3} ~ \frac{\sqrt{3}}{2}    \frac{\sqrt{3}}{3} ~ 1/\sqrt{3}    3\sqrt{13} ~ \sqrt{118}
12\pi ~ \frac{1}{2}\pi+2    (1,\pi] ~ 1<x\le \pi    x>2 ~ (2,\infty)
(-\infty,2)\cup(3,\infty) ~ (3,\infty)\cup(-\infty,2)    \{1,\sqrt{2}\} ~ \sqrt{2},1
1\pm\sqrt{5} ~ 1-\sqrt{5},1+\sqrt{5}    (3,\frac{\pi}{2}) ~ (3,\pi/2)    3+2i ~ 2i-3    x^3-2x+1 ~ 1+x^3-2x
(x+1)(x-2) ~ x^2-x-2    \frac{n(n+1)}{2} ~ n(n-1)/2    \frac{2a+b}{c} ~ (b+3a)/c    y=2x+1 ~ 2x-y+1=0
\begin{pmatrix} 1 & \frac{1}{2} \\ 3 & 4 \end{pmatrix} ~ \begin{bmatrix} 1 & 1/2 \\ 3 & 5 \end{bmatrix}
2^{n}-1 ~ 2\cdot 2^{n-1}    \binom{n}{2} ~ n!/2    \log_{2} 3+\sin x ~ \cos x+\ln 2
\sqrt[3]{4} ~ \lfloor x \rfloor
"""


def main() -> None:
    """Serve from the start, and warm up between requests, so that a lost host is soon replaced."""
    gc.set_threshold(_GARBAGE, 50, 100)
    link_in, link_out, job = runner.opened()
    host = Host(job["no_fork"])

    def serve() -> None:
        wire.send(link_out, host.answer(wire.receive(link_in)))

    with contextlib.suppress(EOFError):
        for pair in re.split(r"\n|    ", _WARM_UP.strip()):
            compare(*pair.split(" ~ "), None)
            if select.select([link_in], [], [], 0)[0]:
                serve()
        gc.collect()
        gc.freeze()
        while True:
            serve()


class _Child(NamedTuple):
    pid: int
    tasks: int  # the writing end of a pipe
    answers: int  # the reading end of another


class Host:
    """Gives comparisons to its child, and watches it."""

    def __init__(self, no_fork: str) -> None:
        self._no_fork = no_fork
        self._child: _Child | None = None

    def answer(self, task: dict) -> dict:
        """Return {"correct", "reason"} of a pair; {"fault": why} if its child was killed from outside, twice."""
        report = self._tried(task)
        return self._tried(task) if "fault" in report or report["reason"] in ("memory", "crashed") else report

    def _tried(self, task: dict) -> dict:
        child = self._child = self._child or self._fork()
        deadline = time.monotonic() + task["timeout"]
        try:
            wire.send(child.tasks, task)
            report = wire.receive(child.answers, deadline)
        except TimeoutError:
            self._ended()
            return {"correct": False, "reason": "timeout"}
        except (EOFError, OSError):
            if self._ended() == -signal.SIGKILL:  # sent by a person, or by a kernel short of memory; not by this host
                return {"fault": "the child that compared was killed from outside (out of memory?)"}
            return {"correct": False, "reason": "crashed"}
        if report["last"]:
            self._ended()
        return report

    def _fork(self) -> _Child:
        (theirs_in, tasks), (answers, theirs_out) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                runner.keep([theirs_in, theirs_out])
                runner.silence()  # the child has its two pipes alone; the memory limit is the jail's
                runner.confine(self._no_fork, {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: _FILES})
                _compare_all(theirs_in, theirs_out)
            finally:
                os._exit(1)  # to end an interpreter with sympy takes longer than a comparison
        os.close(theirs_in)
        os.close(theirs_out)
        return _Child(pid, tasks, answers)

    def _ended(self) -> int:
        """End the child if it has not ended. Return its exit code (negative: the signal)."""
        child, self._child = self._child, None
        os.close(child.tasks)
        os.close(child.answers)
        done, status = os.waitpid(child.pid, os.WNOHANG)
        if not done:
            os.kill(child.pid, signal.SIGKILL)
            _, status = os.waitpid(child.pid, 0)
        return os.waitstatus_to_exitcode(status)


def _compare_all(tasks: int, answers: int) -> None:
    """Answer the tasks of a pipe in turn, until an answer is the last."""
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + _GROWN
    for count in itertools.count(1):
        task = wire.receive(tasks)
        # SIGPROF after this processor time: if the host stops, nothing else ends a hung comparison outside of a jail.
        signal.setitimer(signal.ITIMER_PROF, task["timeout"] + _SPARE_SECONDS)
        correct, reason, last = _compared(task)
        last = last or count == _MOST or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > grown
        wire.send(answers, {"correct": correct, "reason": reason, "last": last})
        if last:
            return


def _compared(task: dict) -> tuple[bool, str | None, bool]:
    """Return whether two texts are equal, why not, and whether this child should compare no more."""
    try:
        return *compare(task["gold"], task["answer"], task["tolerance"], task["formulas"]), False
    except MemoryError:
        return False, "memory", True
    except Exception:  # sympy raises anything; the answer then counts as not equal
        return False, "unparsable", True


if __name__ == "__main__":
    main()
