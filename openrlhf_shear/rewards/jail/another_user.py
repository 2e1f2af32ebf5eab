"""Jails of a user other than root: root owns the devices and files that a jail shares with its machine.

The thread that starts jails has its own view of the files (a mount namespace). There, devices are read-only, and a
folder that only root may look up, such as a Python below /root, is also found at another place. The machine sees none
of this.
"""

import ctypes
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import SystemRandom

# ids of no user; each jail gets another, as the kernel counts some things by user
_USERS = range(0x5EA20000, 0x5EA30000)
_NOBODY = 65534  # in a container without other users
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_PLACES = ("/mnt", "/media", "/srv", "/home")
_NEWNS = 0x20000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19


class View:
    """View of the files that a thread has. Without the right to mount, it is the view that all threads have."""

    def __init__(self) -> None:
        """Make the view of the calling thread."""
        self._moved: dict[tuple, str] = {}  # (path, device, inode) of a folder: the place where it is found
        # No place above this package or its Python.
        above = {
            str(folder) for path in (__file__, sys.prefix, sys.base_prefix) for folder in Path(path).resolve().parents
        }
        self._place = next((place for place in _PLACES if os.path.isdir(place) and place not in above), None)
        try:
            _call("unshare", _NEWNS)
            _mount(None, "/", _REC | _SLAVE)
            for name in _DEVICES:
                if os.path.exists(f"/dev/{name}"):
                    _bind(f"/dev/{name}", f"/dev/{name}", _NOSUID)
            if self._place:
                _mount("tmpfs", self._place, _NOSUID | _NODEV, "tmpfs", "mode=755,size=1m")
        except OSError:
            self._place = None

    def found(self, folder: str) -> str:
        """Return where any user finds a folder; the folder itself if the view cannot offer another place."""
        if self._place is None or all(above.stat().st_mode & stat.S_IXOTH for above in Path(folder).resolve().parents):
            return folder
        status = os.stat(folder)
        key = (folder, status.st_dev, status.st_ino)
        if key not in self._moved:
            place = os.path.join(self._place, str(len(self._moved)))
            os.mkdir(place)
            _bind(folder, place, _NOSUID | _NODEV)
            self._moved[key] = place
        return self._moved[key]


def user() -> tuple[int | None, str]:
    """Return the number of a user that nothing else runs as; or None, and why there is none."""
    numbers, why = _users()
    return (SystemRandom().choice(numbers) if numbers else None), why


def switch(number: int) -> list[str]:
    """Return the words that run the command after them as this user."""
    return ["setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups"]


@cache
def _users() -> tuple[Sequence[int], str]:
    """Return the numbers of users to choose from; or none, and why there are none."""
    if not shutil.which("setpriv"):
        return (), "setpriv is not installed (apt-get install util-linux)"
    maps = [Path(f"/proc/self/{which}_map").read_text().splitlines() for which in ("uid", "gid")]
    mapped = [[range(int(line.split()[0]), sum(map(int, line.split()[::2]))) for line in lines] for lines in maps]
    for numbers in (_USERS, (_NOBODY,)):
        if all(any(number in each for each in ranges) for ranges in mapped for number in (numbers[0], numbers[-1])):
            return numbers, ""
    return (), "this container has no other user"


def _bind(source: str, target: str, flags: int) -> None:
    _mount(source, target, _BIND | _REC)
    _mount(None, target, _BIND | _REMOUNT | _RDONLY | flags)


def _mount(source: str | None, target: str, flags: int, kind: str | None = None, options: str | None = None) -> None:
    *names, data = (word if word is None else word.encode() for word in (source, target, kind, options))
    _call("mount", *names, ctypes.c_ulong(flags), data)


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library. Raises OSError: it failed."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
