"""The system calls that a jail refuses, as seccomp programs (struct sock_filter[])."""

import errno
import logging
import struct
import tempfile
from collections.abc import Iterator
from types import ModuleType

logger = logging.getLogger(__name__)

# Refused to everything in a jail, by kind.
REFUSED = " ".join(
    (
        # A jail has no network to reach. A message can hold descriptors, beyond the limit of open ones. Options make
        # the buffers of pairs larger, beyond the limit of memory.
        "socket bind connect listen accept accept4 sendmsg sendmmsg setsockopt",
        # They set the mode, owner, times or attributes of files, and files and devices can be this machine's.
        "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat",
        "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat file_setattr",
        # Locks and watches on files that others use. A user can have few, so others would wait for them.
        "flock inotify_init inotify_init1 inotify_add_watch fanotify_init fanotify_mark",
        # Memory beyond the address-space limit, and resources counted once for the whole machine.
        "memfd_create memfd_secret shmget shmat shmctl msgget msgctl semget semctl mq_open",
        "io_setup io_submit io_pgetevents io_uring_setup io_uring_enter io_uring_register",
        "mlock mlock2 mlockall membarrier sched_setattr migrate_pages move_pages mbind set_mempolicy",
        "set_mempolicy_home_node",
        # Other processes.
        "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp",
        "pidfd_open pidfd_getfd pidfd_send_signal",
        # Namespaces, mounts, files by number.
        "mount umount2 mount_setattr move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick statmount",
        "listmount listns pivot_root chroot unshare setns name_to_handle_at open_by_handle_at",
        "quotactl quotactl_fd swapon swapoff acct",
        # Other users.
        "setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset",
        # The kernel, and the machine's clock and name.
        "keyctl add_key request_key bpf perf_event_open userfaultfd lookup_dcookie modify_ldt lsm_set_self_attr",
        "init_module finit_module delete_module kexec_load kexec_file_load reboot syslog iopl ioperm personality",
        "settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname vhangup",
    )
)
# Succeed without effect. A jail writes to memory only, and others would wait while a disk is written or read again.
IDLE = "sync syncfs fsync fdatasync sync_file_range msync fadvise64"
NEWEST = 462  # mseal; later calls, of Linux 6.13 or newer, do not exist here
# All requests that untrusted code may make of a descriptor: F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETOWN,
# F_GETSIG, F_DUPFD_CLOEXEC, F_GETPIPE_SZ; TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX. Refused are leases,
# locks, larger pipes, signals to others and a file's flags.
ALLOWED = {
    "fcntl": (0, 1, 2, 3, 4, 9, 11, 1030, 1032),
    "ioctl": (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451),
}
# (call, place): each refused argument. It merges memory with that of others or pages it out (MERGEABLE, COLD,
# PAGEOUT, PR_SET_MEMORY_MERGE), or reserves a core (PR_SCHED_CORE). CLOSE_RANGE_UNSHARE gives a thread a second table
# of descriptors, beyond the limit of open ones.
_VALUES = {("madvise", 2): (12, 20, 21), ("prctl", 0): (62, 67), ("close_range", 2): (2, 6)}
# Refused to untrusted code too: starting a program, and timers with any signal (it could end as if killed).
REFUSED_TO_CHILDREN = "fork vfork execve execveat timer_create ioprio_set"
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


def _all_but(allowed: tuple[int, ...]) -> Iterator[tuple[int, int]]:
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
    for (name, place), values in _VALUES.items():
        rules += [(refuse, name, pyseccomp.Arg(place, masked, _INT, value)) for value in values]
    for rule in rules:
        try:
            base.add_rule(*rule)
        except (ValueError, OSError):  # this processor has no such call, or `_none_above` covers it
            logger.debug("seccomp knows no system call %s here", rule[1])
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
    for name in REFUSED_TO_CHILDREN.split():
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
