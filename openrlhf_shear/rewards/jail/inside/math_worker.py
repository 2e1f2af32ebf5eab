"""Compares answers with math-verify inside a jail: imported once in a host, which forks children that compare.

A child compares one pair after the other, so that the parser and sympy stay warm. What a comparison may do to the next
is nothing: an answer is data for a LaTeX grammar, whitelisted before, and never evaluated; what it leaves in the child
are caches of pure functions, and memory. A child ends after `_MOST` comparisons, when it has grown, and after any
exception; what runs out of memory or dies is tried once more in a fresh child, so that no answer pays for another.
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
from dataclasses import dataclass

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # python -I leaves it out

import runner
import wire
from equality import compare

_TASKS, _ANSWERS = 90, 91  # descriptors of a child
_FILES = 16
_SPARE_SECONDS = 2.0
_MOST = 1000  # comparisons of one child
_GROWN = 200 << 10  # KiB that a child may have beyond its host's
_GARBAGE = 50_000  # objects between two collections: each copies pages of the host's
# The parser learns its grammar and sympy fills its caches while they work: each pair saves every child some 10 ms.
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
    """Serves from the start, and warms up in between: a host that was lost is soon replaced."""
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


@dataclass(frozen=True)
class _Child:
    pid: int
    tasks: int  # the writing end of a pipe
    answers: int  # the reading end of another


class Host:
    """Hands comparisons to its child, and watches it."""

    def __init__(self, no_fork: str) -> None:
        self._no_fork = no_fork
        self._child: _Child | None = None

    def answer(self, task: dict) -> dict:
        """{"correct", "reason"} of a pair; {"fault": why} where its child was killed from outside, twice."""
        said = self._tried(task)
        return self._tried(task) if "fault" in said or said["reason"] in ("memory", "crashed") else said

    def _tried(self, task: dict) -> dict:
        child = self._child = self._child or self._fork()
        deadline = time.monotonic() + task["timeout"]
        try:
            wire.send(child.tasks, task)
            said = wire.receive(child.answers, deadline)
        except TimeoutError:
            self._ended()
            return {"correct": False, "reason": "timeout"}
        except (EOFError, OSError):
            if self._ended() == -signal.SIGKILL:  # not by this host: by a person, or the kernel short of memory
                return {"fault": "the child that compared was killed from outside (out of memory?)"}
            return {"correct": False, "reason": "crashed"}
        if said["last"]:
            self._ended()
        return said

    def _fork(self) -> _Child:
        (theirs_in, tasks), (answers, theirs_out) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _take(theirs_in, theirs_out)
                _confine(self._no_fork)
                _compare_all()
            finally:
                os._exit(1)  # an interpreter with sympy takes longer to end than a comparison
        os.close(theirs_in)
        os.close(theirs_out)
        return _Child(pid, tasks, answers)

    def _ended(self) -> int:
        """End the child if it has not ended; its exit code (negative: the signal)."""
        child, self._child = self._child, None
        os.close(child.tasks)
        os.close(child.answers)
        done, status = os.waitpid(child.pid, os.WNOHANG)
        if not done:
            os.kill(child.pid, signal.SIGKILL)
            _, status = os.waitpid(child.pid, 0)
        return os.waitstatus_to_exitcode(status)


def _take(tasks: int, answers: int) -> None:
    """Keep two descriptors, as `_TASKS` and `_ANSWERS`, and the standard ones."""
    os.dup2(tasks, _TASKS)
    os.dup2(answers, _ANSWERS)
    os.closerange(3, _TASKS)
    os.closerange(_ANSWERS + 1, os.sysconf("SC_OPEN_MAX"))


def _confine(no_fork: str) -> None:
    """Leave the child its two pipes and nothing else. The memory limit is the jail's."""
    runner.silence()
    runner.confine(no_fork, {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: _FILES})


def _compare_all() -> None:
    """Answer one task after the other, until one is the last."""
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + _GROWN
    for count in itertools.count(1):
        task = wire.receive(_TASKS)
        # Of processor time, then SIGPROF: should the host stop, nothing else would end a hanging one outside of a jail.
        signal.setitimer(signal.ITIMER_PROF, task["timeout"] + _SPARE_SECONDS)
        correct, reason, last = _compared(task)
        last = last or count == _MOST or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > grown
        wire.send(_ANSWERS, {"correct": correct, "reason": reason, "last": last})
        if last:
            return


def _compared(task: dict) -> tuple[bool, str | None, bool]:
    """Whether two texts are equal, why not, and whether this child should compare no more."""
    try:
        return *compare(task["gold"], task["answer"], task["tolerance"]), False
    except MemoryError:
        return False, "memory", True
    except Exception:  # sympy raises anything; the answer is then not shown to be equal
        return False, "unparsable", True


if __name__ == "__main__":
    main()
