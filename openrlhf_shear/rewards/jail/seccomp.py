"""The system calls that a jail refuses, as seccomp programs (struct sock_filter[])."""

import errno
import logging
import tempfile
from types import ModuleType

logger = logging.getLogger(__name__)

# Refused to everything in a jail. Sockets: a jail has no network to reach. memfd and System V memory: they grow past
# the address-space limit. chmod, utime: /dev/null and its like are this machine's. The rest: ways to other processes,
# to new namespaces, to other users and to kernel surface.
REFUSED = """
socket bind connect listen accept accept4
chmod fchmod fchmodat fchmodat2 utime utimes utimensat futimesat
memfd_create memfd_secret shmget shmat shmctl msgget msgctl semget semctl mq_open
ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_open pidfd_getfd pidfd_send_signal
mount umount2 mount_setattr move_mount open_tree fsopen fsconfig fsmount fspick pivot_root chroot unshare setns
name_to_handle_at open_by_handle_at quotactl quotactl_fd swapon swapoff acct
setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset
keyctl add_key request_key bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register
init_module finit_module delete_module kexec_load kexec_file_load reboot syslog iopl ioperm personality
settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname vhangup fanotify_init lookup_dcookie
migrate_pages move_pages mbind set_mempolicy
"""
# To untrusted code also: to start a program, and timers of a signal of choice (by which it could end as if killed).
REFUSED_TO_CHILDREN = "fork vfork execve execveat timer_create ioprio_set"
OWN_PID = 0x5EA2F00D  # stands in the filter for the process that installs it; no process has so large a number
_SIGNALS = {"kill": 1, "tkill": 1, "tgkill": 2, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2}  # the signal's place
_SIGKILL, _RLIMIT_CPU = 9, 0
_OF_ANOTHER = ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")
# Signals of choice to others by way of a descriptor: F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP.
_OWNERS = {"fcntl": (8, 10, 15), "ioctl": (0x8901, 0x8902)}
_INT = 0xFFFFFFFF
_NAMESPACE_FLAGS = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
_CLONE_THREAD = 0x10000


def filters() -> tuple[bytes, bytes]:
    """The filter for a whole jail, and the one that untrusted code gets in addition, with `OWN_PID` in place of its
    process. Refused calls see EPERM. Raises ImportError, RuntimeError, OSError: libseccomp is missing, or not to be
    used here.
    """
    import pyseccomp

    return _exported(_whole(pyseccomp)), _exported(_child(pyseccomp))


def _whole(pyseccomp: ModuleType):
    refuse = pyseccomp.ERRNO(errno.EPERM)
    base = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in REFUSED.split():
        try:
            base.add_rule(refuse, name)
        except (ValueError, OSError):  # this processor has no such call, or this libseccomp is older than it
            logger.debug("seccomp knows no system call %s here", name)
    for flag in _NAMESPACE_FLAGS:
        base.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    # clone3 keeps its flags where a filter cannot look; ENOSYS sends the C library back to clone.
    base.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    return base


def _child(pyseccomp: ModuleType):
    """No processes but threads, no signal to another process and no SIGKILL at all: who died of that was killed by
    others. Nothing of another process can be set.
    """
    refuse, other, masked = pyseccomp.ERRNO(errno.EPERM), pyseccomp.NE, pyseccomp.MASKED_EQ
    child = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in REFUSED_TO_CHILDREN.split():
        child.add_rule(refuse, name)
    child.add_rule(refuse, "clone", pyseccomp.Arg(0, masked, _CLONE_THREAD, 0))
    child.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    for name, place in _SIGNALS.items():
        child.add_rule(refuse, name, pyseccomp.Arg(0, other, OWN_PID))
        child.add_rule(refuse, name, pyseccomp.Arg(place, masked, _INT, _SIGKILL))
    for name in _OF_ANOTHER:
        child.add_rule(refuse, name, pyseccomp.Arg(0, other, 0))
    # Of its own, not the processor time: the kernel ends with SIGKILL who has used it up.
    child.add_rule(refuse, "setrlimit", pyseccomp.Arg(0, masked, _INT, _RLIMIT_CPU))
    child.add_rule(refuse, "prlimit64", pyseccomp.Arg(1, masked, _INT, _RLIMIT_CPU), pyseccomp.Arg(2, other, 0))
    for place in (0, 1):  # setpriority: PRIO_PROCESS, of itself
        child.add_rule(refuse, "setpriority", pyseccomp.Arg(place, other, 0))
    for name, commands in _OWNERS.items():
        for command in commands:
            child.add_rule(refuse, name, pyseccomp.Arg(1, masked, _INT, command))
    return child


def _exported(program) -> bytes:
    with tempfile.TemporaryFile() as file:
        program.export_bpf(file)
        file.seek(0)
        return file.read()
