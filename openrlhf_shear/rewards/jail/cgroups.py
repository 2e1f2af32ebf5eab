"""A control group for each jail, if this user may make groups. It limits processes, threads and processors.

RLIMIT_NPROC counts by user, which not every kernel keeps apart. There is no limit on memory: the kernel keeps a removed
memory group for as long as any page that its processes read first is cached. A week of jails would leave thousands.
"""

import contextlib
import itertools
import os
import shlex
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

_NAME = "openrlhf-shear-jail"
_MOST = "80"  # processes and threads, of a program and of the jail itself
_LIMITS = {  # version: file and value of each controller; two processors
    1: {"pids": ("pids.max", _MOST), "cpu": ("cpu.cfs_quota_us", "200000")},
    2: {"pids": ("pids.max", _MOST), "cpu": ("cpu.max", "200000 100000")},
}
_TRIES, _PAUSE = 40, 0.005  # seconds
_numbers = itertools.count()
_left: set[Path] = set()  # groups that still had processes when they were to be removed


def work() -> bool:
    """Return whether groups can be made and entered here. Removes the groups that killed processes left."""
    for folder in {folder for parent, _, _ in parents() for folder in parent.glob(f"{_NAME}-*")}:
        if not os.path.exists(f"/proc/{folder.name.split('-')[-2]}"):
            with contextlib.suppress(OSError):  # a jail's last process is about to end
                folder.rmdir()
    folders = make()
    is_limited = any(_words(folder / "pids.max") == [_MOST] for folder in folders)
    try:
        return is_limited and subprocess.run([*enter(folders), "true"], stderr=subprocess.DEVNULL).returncode == 0
    finally:
        remove(folders)


def make() -> set[Path]:
    """Make a group, and return its folder for each controller, or one for all of them."""
    name, folders = f"{_NAME}-{os.getpid()}-{next(_numbers)}", set()
    for parent, file, value in parents():
        with contextlib.suppress(OSError):
            (parent / name).mkdir(exist_ok=True)
            folders.add(parent / name)
            (parent / name / file).write_text(value)
    return folders


def enter(folders: Iterable[Path]) -> list[str]:
    """Return the words that run the command after them in the group.

    Version 1 has a file for threads. The kernel moves a thread at once, and a process only after all processors have
    passed a quiet state, which takes some 5 ms a group.
    """
    files = [next(file for file in (folder / "tasks", folder / "cgroup.procs") if file.exists()) for folder in folders]
    steps = [*(f"echo 0 > {shlex.quote(str(file))}" for file in files), 'exec "$@"']
    return ["sh", "-c", " && ".join(steps), "sh"]


def remove(folders: Iterable[Path]) -> None:
    """Remove a group once its processes have ended, which takes a moment; else with a later group."""
    _left.update(folders)
    for _ in range(_TRIES):
        for folder in {*_left}:
            with contextlib.suppress(OSError):
                folder.rmdir()
            if not folder.exists():
                _left.discard(folder)
        if not _left:
            return
        time.sleep(_PAUSE)


def parents() -> list[tuple[Path, str, str]]:
    """Return the folders in which this user may make groups, each with a file of its groups and the file's value."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    own = {name: path for _, names, path in lines for name in names.split(",")}  # version 2 has the name ""
    found = []
    for mount in mounts:
        where, _, what = mount.partition(" - ")
        root, place = where.split()[3:5]
        kind, _, options = what.split()[:3]
        if kind == "cgroup":
            for name in own.keys() & _LIMITS[1].keys() & {*options.split(",")}:
                folder = _folder(place, root, own[name])
                found += [(folder, *_LIMITS[1][name])] if os.access(folder, os.W_OK) else []
        elif kind == "cgroup2" and "" in own:
            folder = _folder(place, root, own[""])
            # A group with processes, such as this process's, passes on no controllers. Its parent may.
            for candidate in (folder, folder.parent) if str(folder) != place else (folder,):
                names = _words(candidate / "cgroup.subtree_control")
                if "pids" in names and os.access(candidate / "cgroup.procs", os.W_OK):
                    found += [(candidate, *limit) for name, limit in _LIMITS[2].items() if name in names]
                    break
    return found


def _folder(place: str, root: str, path: str) -> Path:
    return Path(place, os.path.relpath(path, root) if path.startswith(root) else ".")


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
