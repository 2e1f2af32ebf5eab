"""What a test started and what it holds, read from /proc."""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60  # seconds that the end of a process may take on a busy machine


def stats() -> dict[int, list[str]]:
    """Of every process: its state, parent, group, ... (proc_pid_stat(5), from the third field)."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(stat.parent.name)] = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
    return found


def descendants() -> set[int]:
    """Processes below this one, without zombies that are another's to reap."""
    me = os.getpid()
    parents = {pid: int(parent) for pid, (state, parent, *_) in stats().items() if state != "Z" or int(parent) == me}
    below = {me}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {me}


def descriptors() -> int:
    gc.collect()  # what earlier tests left in circles closes here and not in between
    return len(os.listdir("/proc/self/fd"))


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether something comes true in time."""
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()
