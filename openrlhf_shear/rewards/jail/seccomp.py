"""The system calls that a jail refuses, as seccomp programs (struct sock_filter[])."""

import errno
import logging
import tempfile

logger = logging.getLogger(__name__)

# Refused to everything in a jail. Sockets: a jail has no network to reach. memfd and System V memory: they grow past
# the address-space limit. The rest: ways to other processes, to new namespaces, to other users and to kernel surface.
REFUSED = """
socket bind connect listen accept accept4
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
_NAMESPACE_FLAGS = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
_CLONE_THREAD = 0x10000


def filters() -> tuple[bytes, bytes]:
    """The filter for a whole jail, and the one without processes. Refused calls see EPERM. Raises ImportError,
    RuntimeError, OSError: libseccomp is missing, or not to be used here.
    """
    import pyseccomp

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
    no_fork = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in ("fork", "vfork"):
        no_fork.add_rule(refuse, name)
    no_fork.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _CLONE_THREAD, 0))
    no_fork.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    return _exported(base), _exported(no_fork)


def _exported(program) -> bytes:
    with tempfile.TemporaryFile() as file:
        program.export_bpf(file)
        file.seek(0)
        return file.read()
