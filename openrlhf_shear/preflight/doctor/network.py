"""Ports that Ray uses, and the hub that models and data sets come from."""

from __future__ import annotations

import os
import queue
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from openrlhf_shear.preflight.doctor.result import Result, ok, warn

# What listens there by default, and the flag of `ray start` that moves it.
PORTS = {
    6379: ("Ray's head", "--port"),
    8265: ("Ray's dashboard and jobs", "--dashboard-port"),
    10001: ("Ray's clients", "--ray-client-server-port"),
}
_RAY = ("gcs_server", "raylet", "ray::", "ray/dashboard", "ray.util.client")
_HUB_SECONDS = 5


def port(number: int, used_for: str, flag: str) -> Result:
    name = f"port {number}"
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", number))
        except OSError:
            pass
        else:
            return ok(name, f"free, for {used_for}")
    holder = _holder(number)
    if any(part in holder for part in _RAY):
        return ok(name, f"Ray's own, {used_for}: a cluster runs here")
    seen = f"taken by {holder}, where {used_for} would be"
    return warn(name, seen, f"stop that, or ray start {flag} with another port")


def _holder(number: int) -> str:
    """The process that listens on a port, for a person."""
    unknown = "a process of another user"
    try:
        import psutil
    except ImportError:
        return unknown
    try:
        pids = [
            one.pid
            for one in psutil.net_connections("tcp")
            if one.laddr and one.laddr.port == number and one.status == psutil.CONN_LISTEN
        ]
        if not pids or pids[0] is None:
            return unknown
        return f"process {pids[0]} ({' '.join(psutil.Process(pids[0]).cmdline())[:200]})"
    except psutil.Error:
        return unknown


def hub(reach: Callable[[], str | None] | None = None) -> Result:
    """Whether models and data sets can be fetched; `reach` gives what is wrong, None where nothing is."""
    from huggingface_hub import constants

    name, cache = "hub", Path(constants.HF_HUB_CACHE)
    cached = [one.name for one in cache.iterdir() if "--" in one.name] if cache.is_dir() else []
    held = f"{len(cached)} models and data sets in {cache}"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return ok(name, f"HF_HUB_OFFLINE is set; {held}")
    problem = (reach or (lambda: _reach(constants.ENDPOINT)))()
    if problem is None:
        return ok(name, f"{constants.ENDPOINT} answers; {held}")
    remedy = "use local folders or what is in the cache, and set HF_HUB_OFFLINE=1 so that nothing waits for it"
    return warn(name, f"{constants.ENDPOINT} does not answer ({problem}); {held}", remedy)


def _reach(address: str) -> str | None:
    """In a thread, as looking up a name knows no time-out."""
    answers: queue.Queue[str | None] = queue.Queue()

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=_HUB_SECONDS).close()
        except urllib.error.HTTPError:
            answers.put(None)  # it answers, if not this
        except (OSError, ValueError) as error:
            answers.put(str(getattr(error, "reason", error)))
        else:
            answers.put(None)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answers.get(timeout=2 * _HUB_SECONDS)
    except queue.Empty:
        return f"no answer in {2 * _HUB_SECONDS} seconds"
