"""The system calls that a jail refuses, as seccomp programs (struct sock_filter[])."""

import contextlib
import errno
import struct
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

_CALLS = tomllib.loads(Path(__file__).with_name("seccomp.toml").read_text(encoding="utf-8"))
REFUSED, IDLE, ALLOWED = " ".join(_CALLS["refused"].values()), _CALLS["idle"], _CALLS["allowed"]
NEWEST = 462  # mseal; later calls, of Linux 6.13 or newer, do not exist here
OWN_PID = 0x5EA2F00D  # in the filter, the process that installs it; no process has so large a number
_SIGNALS = {"kill": 1, "tkill": 1, "tgkill": 2, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2}  # place of the signal
_SIGKILL, _RLIMIT_CPU = 9, 0
_OF_ANOTHER = ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")
_INT = 0xFFFFFFFF
_FIRST_COMMON = 424  # from here on, the numbers are the same on all processors
_INSTRUCTION = struct.Struct("=HBBI")  # struct sock_filter
_NAMESPACE_FLAGS = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
_CLONE_FILES, _CLONE_THREAD = 0x400, 0x10000


def filters() -> tuple[bytes, bytes]:
    """Return the filter for a whole jail, and the additional filter for untrusted code. Refused calls see EPERM.

    The second has `OWN_PID` in place of the process that installs it. Raises ImportError, RuntimeError, OSError:
    libseccomp is missing, or cannot be used here.
    """
    import pyseccomp

    return _none_above(_newest(pyseccomp)) + _exported(_whole(pyseccomp)), _exported(_child(pyseccomp))


def _newest(pyseccomp: ModuleType) -> int:
    """Return the number of the newest call that libseccomp can name, up to `NEWEST`: `REFUSED` is by name."""
    arch = pyseccomp.system_arch()

    def is_known(number: int) -> bool:
        try:
            return bool(pyseccomp.resolve_syscall(arch, number))
        except ValueError:
            return False

    return max(filter(is_known, range(_FIRST_COMMON, NEWEST + 1)), default=_FIRST_COMMON)


def _none_above(number: int) -> bytes:
    """Return the start of a filter to which later calls do not exist (ENOSYS), so that libraries use earlier calls."""
    code = ((0x20, 0, 0, 0), (0x35, 0, 1, number + 1), (0x06, 0, 0, 0x50000 | errno.ENOSYS))  # load, jump if >=, return
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in code)


def _all_but(allowed: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield masks and values such that each 32-bit number not allowed matches one: blocks of powers of two.

    >>> [*_all_but((0, 1, 2))][:2]  # 3, and 4 to 7
    [(4294967295, 3), (4294967292, 4)]
    """
    start = 0
    for end in (*sorted(allowed), 1 << 32):
        while start < end:
            size = start & -start or 1 << 32
            while start + size > end:
                size //= 2
            yield _INT & ~(size - 1), start
            start += size
        start = end + 1


def _whole(pyseccomp: ModuleType):
    refuse = pyseccomp.ERRNO(errno.EPERM)
    base = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    masked = pyseccomp.MASKED_EQ
    rules = [(refuse, name) for name in REFUSED.split()] + [(pyseccomp.ERRNO(0), name) for name in IDLE.split()]
    for name, refused in _CALLS["values"].items():
        rules += [(refuse, name, pyseccomp.Arg(refused["place"], masked, _INT, value)) for value in refused["values"]]
    for rule in rules:
        with contextlib.suppress(ValueError, OSError):  # this processor has no such call, or `_none_above` covers it
            base.add_rule(*rule)
    for flag in _NAMESPACE_FLAGS:
        base.add_rule(refuse, "clone", pyseccomp.Arg(0, masked, flag, flag))
    # A filter cannot see the flags of clone3. ENOSYS sends the C library back to clone.
    base.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    return base


def _child(pyseccomp: ModuleType):
    """Return the filter for untrusted code: threads but no processes, and no access to other processes.

    It may send no SIGKILL, even to itself: a process that died of SIGKILL was killed by others.
    """
    refuse, other, masked = pyseccomp.ERRNO(errno.EPERM), pyseccomp.NE, pyseccomp.MASKED_EQ
    child = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in _CALLS["children"].split():
        child.add_rule(refuse, name)
    for flag in (_CLONE_FILES, _CLONE_THREAD):
        child.add_rule(refuse, "clone", pyseccomp.Arg(0, masked, flag, 0))
    child.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    for name, place in _SIGNALS.items():
        child.add_rule(refuse, name, pyseccomp.Arg(0, other, OWN_PID))
        child.add_rule(refuse, name, pyseccomp.Arg(place, masked, _INT, _SIGKILL))
    for name in _OF_ANOTHER:
        child.add_rule(refuse, name, pyseccomp.Arg(0, other, 0))
    # It may set its own limits, except the processor time: at the end of that time the kernel sends SIGKILL.
    child.add_rule(refuse, "setrlimit", pyseccomp.Arg(0, masked, _INT, _RLIMIT_CPU))
    child.add_rule(refuse, "prlimit64", pyseccomp.Arg(1, masked, _INT, _RLIMIT_CPU), pyseccomp.Arg(2, other, 0))
    for name, allowed in ALLOWED.items():
        for mask, value in _all_but(allowed):
            child.add_rule(refuse, name, pyseccomp.Arg(1, masked, mask, value))
    for place in (0, 1):  # setpriority: PRIO_PROCESS, of itself
        child.add_rule(refuse, "setpriority", pyseccomp.Arg(place, other, 0))
    return child


def _exported(program) -> bytes:
    with tempfile.TemporaryFile() as file:
        program.export_bpf(file)
        file.seek(0)
        return file.read()
