"""Limits of this shell's processes: address space (`ulimit -v`), and how many there are (`ulimit -u`).

Errors that they cause do not name them.
"""

import os
import resource
from pathlib import Path

_EXEMPT = 1 << 21 | 1 << 24  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE
_OF_THREADS = ("can't start new thread", "Resource temporarily unavailable", "pthread_create failed")
_OF_ADDRESSES = ("Cannot allocate memory", "MemoryError", "std::bad_alloc", "failed to map segment")


def address_limit() -> int | None:
    """Return the bytes that a process may address here; None for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def process_limit() -> int | None:
    """Return how many processes and threads this user may have; None for no limit, as for root."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft == resource.RLIM_INFINITY or os.getuid() == 0 or _capabilities() & _EXEMPT:
        return None
    return soft


def _capabilities() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)


def tasks_of_user() -> int:
    """Return the number of processes and threads of this user, which `ulimit -u` counts."""
    count, user = 0, str(os.getuid())
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:  # it has ended
            continue
        if lines["Uid"].split()[0] == user:
            count += int(lines.get("Threads", 1))
    return count


def named_limit() -> str:
    """Return an addition to an error that the limit of addresses may have caused; "" without a limit."""
    limit = address_limit()
    return (
        "" if limit is None else f"; ulimit -v is {limit >> 10} here, which may be too little: use ulimit -v unlimited"
    )


def likely_limit(error: str) -> str:
    """Return an addition to an error's text that names the limit which it looks like; "" if there is none."""
    if any(text in error for text in _OF_THREADS) and (limit := process_limit()) is not None:
        return f"; ulimit -u is {limit} here, which may be too little: use ulimit -u unlimited"
    return named_limit() if any(text in error for text in _OF_ADDRESSES) else ""
