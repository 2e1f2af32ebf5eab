"""`keeper.py COMMAND ...`: run a command, and kill all its processes when it ends or when our parent ends.

Ray and vLLM start processes in new sessions, which killing a process group does not reach. The keeper is a child
subreaper (Linux): orphans become its children, so its process tree is complete.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_SECONDS = 20  # for Ray to end its processes before it is killed


def below(root: int) -> list[int]:
    """The process ids of all descendants that have not ended."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(int(name))
    tree = [root]
    for process in tree:
        tree += children.get(process, [])
    return tree[1:]


def reap(but: int) -> None:
    """Reap adopted processes that have ended, as init would: another process may wait for that."""
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != but:
        os.waitpid(ended.si_pid, 0)


def main(command: list[str]) -> int:
    """The command's exit code, or 128 and the signal that ended it."""
    parent = os.getppid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(time.monotonic()))
    if os.getppid() != parent:  # the parent ended before we could watch it
        return 1
    process = subprocess.Popen(command)
    while process.poll() is None and not stopped:
        reap(process.pid)
        time.sleep(0.1)
    process.terminate()
    while process.poll() is None and time.monotonic() < stopped[0] + GRACE_SECONDS:
        time.sleep(0.1)
    while left := below(os.getpid()):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    code = process.wait()
    while True:  # init may be slow to reap the adopted processes
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
