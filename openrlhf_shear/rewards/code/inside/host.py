"""Waits inside a jail with everything imported, and forks a process for each grade, a single grade at a time.

The parent sends a byte with the ends of fresh pipes, and talks to the fork through those. No word of a grade passes
through this process, so that no later grade finds any in its memory. When the parent is done, this process ends what is
left of the grade. Its answer says how the fork ended, and whether the jail is as it was before. Only then may the jail
be used again.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # python -I leaves it out
sys.path.insert(1, os.path.join(sys.path[0], "..", "..", "jail", "inside"))  # here and in a jail

import judge
import prelude  # noqa: F401 (imported here once, instead of in each grade)
import runner
import solver
import wire

with contextlib.suppress(ImportError):  # only in a jail with packages; the next most used import
    import numpy  # noqa: F401

_KINDS = {
    "stdin": solver.test,
    "function": solver.test,
    "serve": solver.serve,
    "judge": judge.main,
}
_MOST_PIPES = 4
_END_SECONDS = 2.0  # for the kernel to end the processes that are left
_LOOK_SECONDS = 0.05  # between two checks of the files that a grade has written
_MOST_FILES = 10_000  # of a grade, with folders and links; they cost memory that no other limit counts
_PATIENCE = 0.5  # for a process to end after it has closed its pipes

Doing = Callable[[], "Doing | None"]


def main() -> Doing | None:
    link, out, job = runner.opened()
    control, untouched = socket.socket(fileno=link), _touched()
    sys.set_int_max_str_digits(0)  # as other languages, and Pythons before 3.11; their time limit holds
    gc.freeze()  # a collection in a fork copies no page of this process
    while True:
        word, pipes, _, _ = socket.recv_fds(control, 1, _MOST_PIPES)
        if not word:
            return None
        pid = os.fork()
        if pid == 0:
            return lambda: grade(pipes)
        for fd in pipes:
            os.close(fd)
        overfull = job["alone"] and _overfull(link)
        gone = wire.receive(link)["gone"]
        code, cpu = runner.ended(pid, time.monotonic() + _PATIENCE if gone else 0.0)
        clean = job["alone"] and _alone() and _touched() == untouched
        wire.send(out, {"code": code, "cpu": cpu, "clean": clean, "overfull": overfull})


def grade(pipes: list[int]) -> Doing | None:
    """In the fork: run the job that the first pipe brings. The job has its kind."""
    runner.end_with_parent()
    runner.keep(pipes)
    link_in, link_out, *others = pipes
    job = wire.receive(link_in)
    return _KINDS[job["kind"]](job, link_in, link_out, *others)


def _overfull(link: int) -> bool:
    """Wait until the parent speaks, and end the grade if it makes too many files meanwhile."""
    while not select.select([link], [], [], _LOOK_SECONDS)[0]:
        disk = os.statvfs("/tmp")
        if disk.f_files - disk.f_ffree > _MOST_FILES:
            os.kill(-1, signal.SIGKILL)
            return True
    return False


def _alone() -> bool:
    """End every other process of this jail, whose first process reaps them; return False if one stays."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return True
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.0002)
    return False


def _touched() -> tuple[int, int]:
    """Return the times of the last change in /tmp, and of the last look into it; only this folder can be written to.

    A change makes, removes, renames or sets anything. No program can set the first time. The next program could read
    the second.
    """
    folder = os.stat("/tmp")
    return folder.st_ctime_ns, folder.st_atime_ns


if __name__ == "__main__":
    doing = main()
    while doing:  # so that none runs below another's frame
        doing = doing()
