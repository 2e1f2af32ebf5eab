"""A home folder and a name for users without one, as in containers: libraries look for both, and end a run later."""

import os
import pwd
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path


def ensure_home(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set HOME where it is no folder that this user may write to, and LOGNAME where the user has no name; say so.

    All processes that this process starts inherit both. Triton, numba, Hugging Face and vLLM keep files below HOME.
    """
    user = os.getuid()
    if not _usable(environ.get("HOME") or _known_home(user)):
        environ["HOME"] = _own_folder(user)
        print(f"HOME is no folder that user {user} can write to; caches go to HOME={environ['HOME']}", file=sys.stderr)
    if not _has_name(user) and not any(environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")):
        environ["LOGNAME"] = f"uid{user}"  # PyTorch asks for it


def _known_home(user: int) -> str:
    return pwd.getpwuid(user).pw_dir if _has_name(user) else ""


def _has_name(user: int) -> bool:
    try:
        return bool(pwd.getpwuid(user))
    except KeyError:
        return False


def _usable(home: str) -> bool:
    if not os.path.isabs(home):
        return False
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".shear-", dir=home))
    except OSError:
        return False
    return True


def _own_folder(user: int) -> str:
    """Return a folder of this user alone, the same for all runs unless another user has taken its name."""
    folder = Path(tempfile.gettempdir(), f"openrlhf_shear-home-{user}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if found.st_uid == user and found.st_mode & 0o077 == 0 and not folder.is_symlink():
            return str(folder)
    except OSError:
        pass
    return tempfile.mkdtemp(prefix=f"{folder.name}-")
