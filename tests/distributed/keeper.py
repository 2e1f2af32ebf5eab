"""`keeper.py COMMAND ...`: run it, and when it ends, or whoever started this, leave nothing of it behind.

Ray and vLLM start processes in sessions of their own, which killing a process group does not reach. This one is a
child subreaper (Linux): whatever loses its parent becomes its child, so that the tree below it is all there is.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_SECONDS = 20  # for Ray to end its own, before it is killed


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
    """As init would, what this one adopted and has ended; somebody may wait for it to be gone."""
    while (one := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and one.si_pid != but:
        os.waitpid(one.si_pid, 0)


def main(command: list[str]) -> int:
    """The command's exit code, or 128 and the signal that ended it."""
    parent = os.getppid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(time.monotonic()))
    if os.getppid() != parent:  # it ended before it could be watched
        return 1
    process = subprocess.Popen(command)
    while process.poll() is None and not stopped:
        reap(process.pid)
        time.sleep(0.1)
    process.terminate()
    while process.poll() is None and time.monotonic() < stopped[0] + GRACE_SECONDS:
        time.sleep(0.1)
    while left := below(os.getpid()):
        for one in left:
            try:
                os.kill(one, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    code = process.wait()
    while True:  # init may be slow to ask after those that this one adopted
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
