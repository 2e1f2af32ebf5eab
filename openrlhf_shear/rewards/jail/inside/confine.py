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


def confine(no_fork: str, limits: dict[int, int]) -> None:
    """Lower resource limits (`resource.RLIMIT_...`: value) and install `Jail.no_fork`, nothing if it is "".

    Raises:
        OSError: the kernel refuses the filter; then nothing untrusted may run.
    """
    for which, value in limits.items():
        _, hard = resource.getrlimit(which)
        lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (lowered, lowered))
    if no_fork:
        libc = ctypes.CDLL(None, use_errno=True)
        instructions = bytes.fromhex(no_fork)
        program = ctypes.byref(_Program(len(instructions) // _INSTRUCTION_BYTES, instructions))
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
            _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0
        ):
            raise OSError(ctypes.get_errno(), "the kernel refused the filter against new processes")
