"""Shared parts of the scripts in a jail: the link to the parent, and watched children that run untrusted code.

A child has no descriptor of its runner's, cannot start processes, cannot signal its runner or change its limits, and
knows no expected result.
"""

import ctypes
import fcntl
import itertools
import os
import resource
import selectors
import signal
import struct
import time
from collections.abc import Callable

import wire

ANSWER = 90  # where a child writes its result
MAX_OUTPUT = 8 << 20  # bytes; even escaped, at six times the size, they fit in a frame
MAX_ERROR = 2000  # bytes kept of the end of stderr
_LINK = 100  # the link's descriptors start here
_CHUNK = 1 << 16
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_SET_NO_NEW_PRIVS, _PR_SET_PDEATHSIG = 22, 2, 38, 1
_INSTRUCTION = struct.Struct("=HBBI")  # struct sock_filter
OWN_PID = 0x5EA2F00D  # as in `jail.seccomp`


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def opened() -> tuple[int, int, dict]:
    """Move the link to the parent away from stdin and stdout, report that this process is ready, and hear the job."""
    link_in, link_out = (fcntl.fcntl(fd, fcntl.F_DUPFD, _LINK) for fd in (0, 1))
    silence()
    wire.send(link_out, {"ready": True})
    return link_in, link_out, wire.receive(link_in)


def keep(descriptors: list[int]) -> None:
    """Close all descriptors above 2 but these."""
    for before, after in itertools.pairwise([2, *sorted(descriptors), os.sysconf("SC_OPEN_MAX")]):
        os.closerange(before + 1, after)


def end_with_parent() -> None:
    """Let the kernel end this process when the process that forked it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def silence() -> None:
    """Redirect stdin, stdout and stderr to /dev/null."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)


def confine(no_fork: str, limits: dict[int, int]) -> None:
    """Lower resource limits (`resource.RLIMIT_...`: value) and install `Jail.no_fork`, nothing if it is "".

    Raises OSError: the kernel refuses the filter; then nothing untrusted may run.
    """
    for which, value in limits.items():
        _, hard = resource.getrlimit(which)
        lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (lowered, lowered))
    if no_fork:
        libc = ctypes.CDLL(None, use_errno=True)
        mine = [
            _INSTRUCTION.pack(*rest, os.getpid() if value == OWN_PID else value)
            for *rest, value in _INSTRUCTION.iter_unpack(bytes.fromhex(no_fork))
        ]
        program = ctypes.byref(_Program(len(mine), b"".join(mine)))
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
            _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0
        ):
            raise OSError(ctypes.get_errno(), "the kernel refused the filter against new processes")


def each_in_a_child(link_in: int, link_out: int, work: Callable[[dict], None]) -> Callable[[], None] | None:
    """Do `work` on each message of the parent in a separate fork, and tell the parent how that ended.

    Returns in each child with the work to do, so that nothing untrusted runs below these frames.
    """
    while True:
        try:
            task = wire.receive(link_in)
        except EOFError:
            return None
        theirs, mine = zip(os.pipe(), *(os.pipe()[::-1] for _ in range(3)), strict=True)
        pid = os.fork()
        if pid == 0:
            _take(theirs)
            return lambda: work(task)
        for fd in theirs:
            os.close(fd)
        wire.send(link_out, _watch(pid, mine, task))


def _take(ends: tuple[int, ...]) -> None:
    """Make the pipes 0, 1, 2 and the answer's, and close all other descriptors."""
    end_with_parent()
    for fd, place in zip(ends, (0, 1, 2, ANSWER), strict=True):
        os.dup2(fd, place)
    keep([ANSWER])


def _watch(pid: int, ends: tuple[int, ...], task: dict) -> dict:
    """Feed a child and read its output until it has ended, or end it."""
    feed, out, err, answer = ends
    deadline = time.monotonic() + task["timeout"]
    left = memoryview(task.get("stdin", "").encode("utf-8", "surrogatepass"))
    output = {fd: bytearray() for fd in (out, err, answer)}
    flooded = False
    os.set_blocking(feed, False)
    with selectors.DefaultSelector() as selector:
        selector.register(feed, selectors.EVENT_WRITE)
        for fd in output:
            selector.register(fd, selectors.EVENT_READ)
        while output.keys() & selector.get_map() and not flooded and (wait := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(wait):
                if key.fd == feed:
                    left = more = _feed(feed, left)
                else:
                    more = os.read(key.fd, _CHUNK)
                    output[key.fd] += more
                    if key.fd == err:
                        del output[err][:-MAX_ERROR]
                if not more:
                    selector.unregister(key.fd)
                    os.close(key.fd)
            flooded = sum(map(len, output.values())) > MAX_OUTPUT
        for fd in [*selector.get_map()]:
            os.close(fd)
    code, cpu = ended(pid, 0.0 if flooded else deadline)
    if code is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    how = "output_limit" if flooded else "timeout" if code is None else "ended"
    if code != 0 or flooded:
        output[out] = output[answer] = b""
    texts = {"stdout": output[out], "stderr": output[err], "answer": output[answer]}
    decoded = {name: text.decode("utf-8", "replace") for name, text in texts.items()}
    return {"how": how, "code": code, "cpu": cpu, **decoded}


def _feed(fd: int, left: memoryview) -> memoryview:
    try:
        return left[os.write(fd, left[:_CHUNK]) :] if left else left
    except BlockingIOError:
        return left
    except BrokenPipeError:  # the program read as much as it wanted
        return left[:0]


def ended(pid: int, deadline: float) -> tuple[int | None, float]:
    """Return a child's exit code (negative: the signal) and processor time [s]; None if it has not ended by then."""
    pause = 0.0002
    while True:
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        if time.monotonic() > deadline:
            return None, 0.0
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
