"""Ways out of a jail, and what refuses each; `try_escapes` tries them all on this machine."""

import json
import os
import sys
from pathlib import Path

from openrlhf_shear.rewards.jail.bubblewrap import INSIDE, Jail, Limits, kill

MARK = "openrlhf-shear-escape"
_SECONDS = 60

# name: (Python that fails or gives a false value where the jail holds, what refuses it)
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
    "network devices": ("[name for _, name in socket.if_nameindex() if name != 'lo']", "network namespace"),
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
    "change owner": ("os.chown('/tmp', 0, 0)", "user namespace"),
    "capabilities": ("call(126, byref((c_uint * 2)(0x20080522, 0)), byref((c_uint * 6)()))", "seccomp: capset"),
    "user namespace": ("call(272, 0x10000000)", "seccomp: unshare"),
    "mount namespace": ("call(272, 0x20000)", "seccomp: unshare"),
    "clone into a namespace": ("call(56, 0x10000000 | 17, 0, 0, 0, 0)", "seccomp: clone"),
    "clone3": ("call(435, 0, 0)", "seccomp: clone3"),
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
    "a device": ("os.mknod('/tmp/sda', 0o60600, os.makedev(8, 0))", "no capabilities"),
    "a terminal": ("os.open('/dev/tty', os.O_RDWR)", "new session"),
}


def try_escapes(jail: Jail) -> list[tuple[str, str, str]]:
    """Name, what should refuse it, and what happened: "refused...", or "WORKED: ..." with what was got."""
    names = {
        "HOME": os.path.expanduser("~"),
        "PROJECT": str(Path(__file__).parents[3]),
        "PREFIX": Path(sys.base_prefix).parts,
        "PARENT": os.getpid(),
        "MARK": MARK,
    }
    given = {"names": names, "attempts": {name: attempt for name, (attempt, _) in ESCAPES.items()}}
    process = jail.start(INSIDE / "escapes.py", Limits())
    try:
        out, _ = process.communicate(json.dumps(given).encode() + b"\n", timeout=_SECONDS)
    finally:
        kill(process)
    said = dict(map(json.loads, out.splitlines()))
    return [(name, refuses, said.get(name, "nothing: the script ended")) for name, (_, refuses) in ESCAPES.items()]
