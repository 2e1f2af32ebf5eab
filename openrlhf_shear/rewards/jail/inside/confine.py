"""What a process takes from itself before it runs untrusted code."""

from __future__ import annotations

import ctypes
import os
import resource

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38
_INSTRUCTION_BYTES = 8  # struct sock_filter


class _Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def silence() -> None:
    """Make stdin, stdout and stderr nothing."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)


def confine(no_fork: bytes, memory_mb: int, cpu_seconds: int) -> None:
    """Install `Jail.no_fork` (nothing if it is b"") and lower the limits of memory [MiB] and processor time [s].

    Raises:
        OSError: the kernel refuses the filter; then nothing untrusted may run.
    """
    _lower(resource.RLIMIT_AS, memory_mb << 20)
    _lower(resource.RLIMIT_CPU, cpu_seconds)
    forbid_processes(no_fork)


def forbid_processes(no_fork: bytes) -> None:
    """Install `Jail.no_fork` in this process, nothing if it is b"".

    Raises:
        OSError: the kernel refuses the filter; then nothing untrusted may run.
    """
    if no_fork:
        libc = ctypes.CDLL(None, use_errno=True)
        program = _Program(len(no_fork) // _INSTRUCTION_BYTES, no_fork)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
            _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
        ):
            raise OSError(ctypes.get_errno(), "the kernel refused the filter against new processes")


def _lower(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))
