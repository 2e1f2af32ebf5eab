"""Processes that a test started and descriptors that it holds, read from /proc."""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

# Seconds that the end of a process may take on a busy machine: more than a jail may take to start, 60.
PATIENCE = 90 * float(os.environ.get("OPENRLHF_SHEAR_TEST_PATIENCE", "1"))


def stats() -> dict[int, list[str]]:
    """Return state, parent, group, ... of every process (proc_pid_stat(5), from the third field)."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(stat.parent.name)] = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
    return found


def descendants() -> set[int]:
    """Processes below this one, without zombies of other parents."""
    me = os.getpid()
    parents = {pid: int(parent) for pid, (state, parent, *_) in stats().items() if state != "Z" or int(parent) == me}
    below = {me}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {me}


def children() -> set[int]:
    """Processes that this one started and has not reaped."""
    return {pid for pid, (_, parent, *_) in stats().items() if int(parent) == os.getpid()}


def chain(pid: int) -> list[int]:
    """A process, its child, the child of that, and so on; zombies do not count."""
    started = {int(parent): child for child, (state, parent, *_) in stats().items() if state != "Z"}
    found = [pid]
    while found[-1] in started:
        found.append(started[found[-1]])
    return found


def descriptors() -> int:
    gc.collect()  # close the cycles of earlier tests now, not between two counts
    return len(os.listdir("/proc/self/fd"))


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()
