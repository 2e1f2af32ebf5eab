"""Ways out of a jail, and the defence against each. `try_escapes` tries them all on this machine."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from openrlhf_shear.rewards.code.hosts import DiedError, Grade, Host
from openrlhf_shear.rewards.jail.bubblewrap import INSIDE, Jail, Limits

MARK = "openrlhf-shear-escape"
_SECONDS = 60

# name: (Python that fails or gives a false value if the jail holds, what refuses it)
ESCAPES = {
    "TCP": ("socket.create_connection(('127.0.0.1', 22), 2)", "seccomp: socket"),
    "UDP": ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "seccomp: socket"),
    "IPv6": ("socket.socket(socket.AF_INET6)", "seccomp: socket"),
    "raw packets": ("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", "seccomp: socket"),
    "netlink": ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", "seccomp: socket"),
    "unix socket": ("socket.socket(socket.AF_UNIX)", "seccomp: socket"),
    "abstract socket by a pair": (
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', ABSTRACT)",
        "network namespace",
    ),
    "network devices": ("[name for _, name in socket.if_nameindex() if name != 'lo']", "seccomp: socket"),
    "home folder": ("[at for at in os.listdir(HOME) if at not in PREFIX]", "mount namespace"),
    "/home": ("os.listdir('/home')", "mount namespace"),
    "users": ("open('/etc/passwd').read()", "mount namespace"),
    "host name": ("os.uname().nodename != 'jail'", "uts namespace"),
    "the project": ("os.listdir(PROJECT)", "mount namespace"),
    "/proc": ("os.listdir('/proc')", "no /proc"),
    "/sys": ("os.listdir('/sys')", "mount namespace"),
    "environment": ("set(os.environ) - {'PWD', 'LC_CTYPE', 'OPENBLAS_NUM_THREADS', 'OMP_NUM_THREADS'}", "clearenv"),
    "write to the root": ("open('/x', 'w')", "read-only root"),
    "write to /dev": ("open('/dev/x', 'w')", "read-only /dev"),
    "write to /dev/shm": ("open('/dev/shm/x', 'w')", "read-only /dev"),
    "write beside the script": ("open(__file__ + 'c', 'w')", "read-only bind"),
    "write to the libraries": ("open(os.__file__, 'a')", "read-only bind"),
    "a file the host sees": ("open('/tmp/' + MARK, 'w').close() or HOST_SEES", "private /tmp"),
    "fill the disk": ("sum(fill(f'/tmp/{n}', 8) for n in range(16)) > 66 << 20", "size of /tmp"),
    "one large file": ("fill('/tmp/large', 80) > 64 << 20", "RLIMIT_FSIZE"),
    "memory": ("bytearray(2 << 30)", "RLIMIT_AS"),
    "memory as files": ("os.memfd_create('x')", "seccomp: memfd_create"),
    "shared memory": ("call(29, 0, 1 << 20, 0o1600)", "seccomp: shmget"),
    "open files": ("[os.dup(0) for _ in range(500)]", "RLIMIT_NOFILE"),
    "signal the parent": ("os.kill(PARENT, 9)", "pid namespace"),
    "signal all": ("signal.signal(15, signal.SIG_IGN) and os.kill(-1, 15)", "pid namespace"),
    "become root": ("os.setuid(0)", "seccomp: setuid"),
    "change group": ("os.setgroups([0])", "seccomp: setgroups"),
    "be root": ("os.getuid() == 0", "user namespace"),
    "own what is root's": ("writable(NULL) and os.open(NULL, os.O_NOATIME)", "another user, or read-only"),
    "change owner": ("os.chown('/tmp', *ME) or True", "seccomp: chown"),
    "the owner of a device": ("os.chown(NULL, *ME) or True", "seccomp: chown"),
    "the owner of a link": ("os.lchown(NULL, *ME) or True", "seccomp: lchown"),
    "the owner of an open file": ("os.fchown(os.open(NULL, 0), *ME) or True", "seccomp: fchown"),
    "the owner, beside a folder": ("call(260, -100, b'/dev/null', *ME, 0)", "seccomp: fchownat"),
    "an access list of a device": ("os.setxattr(NULL, ACCESS, LIST) or True", "seccomp: setxattr"),
    "an access list of a link": (
        "os.setxattr(NULL, ACCESS, LIST, follow_symlinks=False) or True",
        "seccomp: lsetxattr",
    ),
    "an access list of an open file": ("os.setxattr(os.open(NULL, 0), ACCESS, LIST) or True", "seccomp: fsetxattr"),
    "an access list, beside a folder": (
        "call(463, -100, b'/dev/null', 0, ACCESS.encode(), byref((c_uint * 8)()), 16)",
        "seccomp: newer calls",
    ),
    "no access list of a device": ("os.removexattr(NULL, ACCESS) or True", "seccomp: removexattr"),
    "no access list of a link": (
        "os.removexattr(NULL, ACCESS, follow_symlinks=False) or True",
        "seccomp: lremovexattr",
    ),
    "no access list of an open file": ("os.removexattr(os.open(NULL, 0), ACCESS) or True", "seccomp: fremovexattr"),
    "no access list, beside a folder": ("call(466, -100, b'/dev/null', 0, ACCESS.encode())", "seccomp: newer calls"),
    "flags of a file": ("call(469, -100, b'/dev/null', byref((c_uint * 8)()), 24, 0)", "seccomp: newer calls"),
    "a lock on a library": ("fcntl.flock(os.open(os.__file__, 0), fcntl.LOCK_SH) or True", "seccomp: flock"),
    "a watch": ("call(253)", "seccomp: inotify_init"),
    "a watch with flags": ("call(294, 0)", "seccomp: inotify_init1"),
    "a watch on all": ("call(300, 0x200, 0)", "seccomp: fanotify_init"),
    "the machine's asynchronous reads": ("call(206, 1, byref((c_uint * 2)()))", "seccomp: io_setup"),
    "descriptors in a message": ("socket.socketpair()[0].sendmsg([b'x'])", "seccomp: sendmsg"),
    "large buffers": ("socket.socketpair()[0].setsockopt(1, 7, 8 << 20) or True", "seccomp: setsockopt"),
    "another table of descriptors": ("call(436, 1000, 1000, 2)", "seccomp: close_range"),
    "memory that stays": ("call(149, byref(c_uint()), 4)", "seccomp: mlock"),
    "all processors at once": ("call(324, 1, 0, 0)", "seccomp: membarrier"),
    "a core for itself": ("call(157, 62, 1, 0, 1, 0)", "seccomp: prctl"),
    "pages of others": ("mmap.mmap(-1, 4096).madvise(21) or True", "seccomp: madvise"),
    "capabilities": ("call(126, byref((c_uint * 2)(0x20080522, 0)), byref((c_uint * 6)()))", "seccomp: capset"),
    "user namespace": ("call(272, 0x10000000)", "seccomp: unshare"),
    "mount namespace": ("call(272, 0x10020000)", "seccomp: unshare"),
    "clone into a namespace": ("call(56, 0x10000000 | 17, 0, 0, 0, 0)", "seccomp: clone"),
    "clone3": ("call(435, byref((c_uint * 16)(*[0] * 8, 17)), 64)", "seccomp: clone3"),
    "enter a namespace": ("call(308, 0, 0)", "seccomp: setns"),
    "mount": ("call(165, b'x', b'/tmp', b'tmpfs', 0, 0)", "seccomp: mount"),
    "unmount": ("call(166, b'/tmp', 2)", "seccomp: umount2"),
    "chroot": ("os.chroot('/tmp')", "seccomp: chroot"),
    "ptrace": ("call(101, 16, os.getppid(), 0, 0)", "seccomp: ptrace"),
    "memory of another process": ("call(310, os.getppid(), 0, 0, 0, 0, 0)", "seccomp: process_vm_readv"),
    "handle of a process": ("os.pidfd_open(1)", "seccomp: pidfd_open"),
    "bpf": ("call(321, 0, 0, 0)", "seccomp: bpf"),
    "io_uring": ("call(425, 8, byref((c_uint * 30)()))", "seccomp: io_uring_setup"),
    "keys": ("call(250, 0, -3, 1)", "seccomp: keyctl"),
    "perf": ("call(298, 0, 0, -1, -1, 0)", "seccomp: perf_event_open"),
    "userfaultfd": ("call(323, 1)", "seccomp: userfaultfd"),
    "kernel log": ("call(103, 3, byref((c_uint * 30)()), 100)", "seccomp: syslog"),
    "reboot": ("call(169, 0, 0, 0, 0)", "seccomp: reboot"),
    "set the clock": ("time.clock_settime(time.CLOCK_REALTIME, 0)", "seccomp: clock_settime"),
    "raise its limits": ("resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))", "RLIMIT_AS"),
    "the mode of a device": ("os.chmod(NULL, 0o666) or True", "seccomp: chmod"),
    "the times of a device": ("os.utime(NULL) or True", "seccomp: utimensat"),
    "a new terminal": ("os.open('/dev/ptmx', os.O_RDWR)", "no devices in /dev/pts"),
    "a device": ("os.mknod('/tmp/sda', 0o60600, os.makedev(8, 0))", "no capabilities"),
    "a terminal": ("os.open('/dev/tty', os.O_RDWR)", "new session"),
}

# As above, for a graded program: what it could do to its runner, or leave for the next grade.
ESCAPES_OF_A_PROGRAM = {
    "signal the runner": ("os.kill(os.getppid(), 0) or True", "seccomp: kill"),
    "kill the runner": ("os.kill(os.getppid(), 9) or True", "seccomp: kill"),
    "stop the runner": ("os.kill(os.getppid(), signal.SIGSTOP) or True", "seccomp: kill"),
    "a lease on a library": ("fcntl.fcntl(os.open(os.__file__, 0), 1024, 0) or True", "seccomp: fcntl"),
    "notes of a folder": ("fcntl.fcntl(os.open('/usr', 0), 1026, 1) or True", "seccomp: fcntl"),
    "a lock on a part of a library": ("fcntl.lockf(open(os.__file__), fcntl.LOCK_SH) or True", "seccomp: fcntl"),
    "a large pipe": ("fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)", "seccomp: fcntl"),
    "flags of an open file": ("fcntl.ioctl(os.open(NULL, 0), 0x40086602, bytes(8)) or True", "seccomp: ioctl"),
    "threads": ("threads(100) > 80", "RLIMIT_NPROC"),
    "a thread with another table of descriptors": ("call(56, 0x10900, 0, 0, 0, 0)", "seccomp: clone"),
    "signals that wait": ("queued(500) > 200", "RLIMIT_SIGPENDING"),
    "signal all at once": ("os.kill(-1, 0) or True", "seccomp: kill"),
    "signal its group": ("os.kill(0, 0) or True", "seccomp: kill"),
    "signal a thread of the runner": ("call(200, os.getppid(), 0)", "seccomp: tkill"),
    "signal the runner's group of threads": ("call(234, os.getppid(), os.getppid(), 0)", "seccomp: tgkill"),
    "queue a signal": ("call(129, os.getppid(), 0, byref((c_uint * 32)()))", "seccomp: rt_sigqueueinfo"),
    "a signal by a pipe": ("fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid()) or True", "seccomp: fcntl"),
    "a signal of choice": ("fcntl.fcntl(os.pipe()[0], 10, 9) or True", "seccomp: fcntl"),
    "a signal by a socket": ("fcntl.ioctl(socket.socketpair()[0], 0x8901, OWNER) or True", "seccomp: ioctl"),
    "end as if killed": ("os.kill(os.getpid(), 9) or True", "seccomp: kill"),
    "end as if killed, by a timer": ("call(222, 0, byref(KILLS), byref(c_uint()))", "seccomp: timer_create"),
    "end as if killed, out of time": ("call(302, 0, 0, byref((c_uint * 4)()), 0)", "seccomp: prlimit64"),
    "limit the runner": ("resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))", "seccomp: prlimit64"),
    "see the runner's limits": ("resource.prlimit(os.getppid(), resource.RLIMIT_CPU)", "seccomp: prlimit64"),
    "move the runner": ("os.sched_setaffinity(os.getppid(), {0}) or True", "seccomp: sched_setaffinity"),
    "schedule the runner": (
        "os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0)) or True",
        "seccomp: sched_setscheduler",
    ),
    "slow the runner": ("os.setpriority(os.PRIO_PROCESS, os.getppid(), 19) or True", "seccomp: setpriority"),
    "slow its group": ("os.setpriority(os.PRIO_PGRP, 0, 19) or True", "seccomp: setpriority"),
    "slow all": ("os.setpriority(os.PRIO_USER, 0, 19) or True", "seccomp: setpriority"),
    "order of the disk": ("call(251, 1, os.getppid(), 0x6007)", "seccomp: ioprio_set"),
    "a process that stays": ("os.fork()", "seccomp: clone"),
    "another program": ("os.execv(sys.executable, ['python', '-c', '']) or True", "seccomp: execve"),
    "descriptors of the runner": ("descriptors()", "closed before"),
    "the runner's pipes": ("[fd for fd in range(91, 1000) if wrote(fd)]", "closed before"),
}
# name: (what a program leaves, what the next grade's program finds, what prevents it)
LEFT_BEHIND = {
    "leave a file": ("open('/tmp/left', 'w').write('x')", "os.listdir('/tmp')", "a new jail"),
    "leave a hidden folder": ("os.makedirs('/tmp/.left/' + '/x' * 200)", "os.listdir('/tmp')", "a new jail"),
    "leave an attribute": ("os.setxattr('/tmp', 'user.left', b'x')", "os.listxattr('/tmp')", "seccomp: setxattr"),
    "leave a mode": ("os.chmod('/tmp', 0o700)", "os.stat('/tmp').st_mode & 0o777 == 0o700", "seccomp: chmod"),
    "leave a timer": (
        "signal.setitimer(signal.ITIMER_REAL, 600)",
        "signal.getitimer(signal.ITIMER_REAL)[0]",
        "a new process",
    ),
    "leave a variable": ("setattr(json, 'left', 1)", "hasattr(json, 'left')", "a new process"),
    "leave a limit": (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
        "resource.getrlimit(resource.RLIMIT_NOFILE)[1] == 64",
        "a new process",
    ),
    "leave a mask": ("os.umask(0o777)", "os.umask(0) == 0o777", "a new process"),
    "leave a folder": ("os.chdir('/dev')", "os.getcwd() == '/dev'", "a new process"),
}


def try_escapes(jail: Jail) -> list[tuple[str, str, str]]:
    """Return the name, the defence and the outcome of each attempt: "refused...", or "WORKED: ..." with the result.

    Attempts that the jail cannot refuse on this machine are left out; `mechanisms` names them.
    """
    names = {
        "HOME": os.path.expanduser("~"),
        "PROJECT": str(Path(__file__).parents[3]),
        "PREFIX": Path(sys.base_prefix).parts,
        "PARENT": os.getpid(),
        "MARK": MARK,
    }
    request = {"names": names, "attempts": {name: attempt for name, (attempt, _) in ESCAPES.items()}}
    process = jail.start(INSIDE / "escapes.py", Limits())
    try:
        out, _ = process.communicate(json.dumps(request).encode() + b"\n", timeout=_SECONDS)
    finally:
        process.end()
    outcomes = dict(map(json.loads, out.splitlines()))
    attempts = [{name: attempt for name, (attempt, _) in ESCAPES_OF_A_PROGRAM.items()}]
    for name, (leave, find, _) in LEFT_BEHIND.items():
        attempts += [{"leaving": leave}, {name: find}]
    for tried in _of_programs(jail, names, attempts):
        outcomes |= tried
    left = {name: (find, refuses) for name, (_, find, refuses) in LEFT_BEHIND.items()}
    every = ESCAPES | ESCAPES_OF_A_PROGRAM | left
    rows = [(name, refuses, outcomes.get(name, "nothing: the script ended")) for name, (_, refuses) in every.items()]
    return [row for row in rows if row[0] not in jail.lacks]


def _of_programs(jail: Jail, names: dict, each: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Yield what happened to the attempts of programs. Each is a grade; a jail serves grades as long as it is clean."""
    source = (INSIDE / "escapes.py").read_text()
    job = {"kind": "stdin", "sources": [source], "prelude": False, "no_fork": jail.no_fork, "threads": jail.threads}
    job |= {"memory_mb": Limits().memory_mb, "cpu_seconds": _SECONDS}
    host, clean = Host(jail), True
    try:
        host.greet()
        for attempts in each:
            if not clean:
                host.end()
                host = Host(jail)
                host.greet()
            with contextlib.closing(Grade(host)) as grade, contextlib.suppress(DiedError, TimeoutError):
                grade.tell(job, time.monotonic() + _SECONDS)
                request = json.dumps({"names": names, "attempts": attempts})
                ended = grade.run({"stdin": request + "\n"}, _SECONDS, "a program that tries escapes")
                yield dict(map(json.loads, ended["stdout"].splitlines()))
            clean = grade.is_clean()
    finally:
        host.end()
