"""Where the head of this machine's Ray cluster is, and whether anything answers: Ray itself waits minutes for one that
is gone."""

from __future__ import annotations

import os
import socket
from pathlib import Path

_CONNECT_SECONDS = 5


def last_started() -> str:
    """HOST:PORT of the cluster last started on this machine, from the file that `ray.init` names; "" for none."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    file = Path(folder, "ray", "ray_current_cluster")
    return file.read_text().strip() if file.is_file() else ""


def silence(address: str) -> str:
    """Why nobody answers at HOST:PORT or ray://HOST:PORT; "" if somebody does."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return str(error)
    return ""
