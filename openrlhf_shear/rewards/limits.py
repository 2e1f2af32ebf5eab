"""Limits of this shell's processes: address space (`ulimit -v`), and how many there are (`ulimit -u`)."""

import os
import resource
from pathlib import Path

_EXEMPT = 1 << 21 | 1 << 24  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE


def address_limit() -> int | None:
    """Return the bytes that a process may address here; None for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def process_limit() -> int | None:
    """Return how many processes and threads this user may have; None for no limit, as for root."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    lines = Path("/proc/self/status").read_text().splitlines()
    capabilities = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return None if soft == resource.RLIM_INFINITY or os.getuid() == 0 or capabilities & _EXEMPT else soft


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
