"""Tries, inside a jail, the attempts that `jail/escapes.py` lists, and reports how each ended."""

# ruff: noqa: F401 (the attempts, which are evaluated, use these)
import ctypes
import fcntl
import json
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
from ctypes import byref, c_uint

GIVEN = json.loads(sys.stdin.readline())
globals().update(GIVEN["names"])
ABSTRACT = "\0" + GIVEN["names"]["MARK"]
HOST_SEES = False
NULL = "/dev/null"
OWNER = struct.pack("i", os.getppid())
ME = os.getuid(), os.getgid()
ACCESS = "system.posix_acl_access"  # rw-rw-rw-, as /dev/null has it already
LIST = struct.pack("<I" + "HHI" * 3, 2, 1, 6, 0xFFFFFFFF, 4, 6, 0xFFFFFFFF, 32, 6, 0xFFFFFFFF)
KILLS = (c_uint * 16)(0, 0, 9, 0)  # struct sigevent: SIGKILL to the process
libc = ctypes.CDLL(None, use_errno=True)


def call(number, *arguments):
    if os.uname().machine != "x86_64":
        raise OSError("the numbers are of x86_64")
    if libc.syscall(number, *arguments) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True


def fill(path, megabytes):
    written = 0
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(megabytes):
                written += file.write(bytes(1 << 20))
    except OSError:
        pass
    return written


def writable(path):
    return not os.statvfs(path).f_flag & os.ST_RDONLY


def threads(most):
    """Return how many threads can be started."""
    threading.stack_size(64 << 10)
    end, started = threading.Event(), []
    try:
        for _ in range(most):
            thread = threading.Thread(target=end.wait)
            thread.start()
            started.append(thread)
    except RuntimeError:
        pass
    end.set()
    for thread in started:
        thread.join()
    return len(started)


def queued(most):
    """Return how many of its own signals can wait for this process."""
    signal.signal(40, lambda *_: None)  # threads that are still ending do not block it
    signal.pthread_sigmask(signal.SIG_BLOCK, [40])
    words, count = (c_uint * 32)(40, 0, 0xFFFFFFFF), 0  # siginfo_t: SI_QUEUE
    while count < most and libc.syscall(129, os.getpid(), 40, byref(words)) == 0:
        count += 1
    signal.signal(40, signal.SIG_IGN)
    return count


def descriptors():
    """Return the open descriptors that no program should have: not stdin, stdout, stderr or the result's."""
    return [fd for fd in range(3, 1000) if fd != 90 and is_open(fd)]


def is_open(fd):
    try:
        return os.fstat(fd)
    except OSError:
        return None


def wrote(fd):
    try:
        return os.write(fd, b"x")
    except OSError:
        return 0


signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for name, attempt in GIVEN["attempts"].items():
    try:
        got = eval(attempt)
        outcome = f"WORKED: {got!r}" if got or got is None else "refused"
    except (OSError, MemoryError, ValueError) as error:
        outcome = f"refused: {error!r}"
    os.closerange(3, 90)  # descriptors left open must not count against the next attempt's limit
    print(json.dumps([name, outcome[:300]]), flush=True)
