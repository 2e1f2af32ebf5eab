"""Ray's node without fixed time limits at its start, which a busy machine exceeds, and deaf to SIGTERM and SIGUSR1.

Ray 2.55 gives up after 30 s without the GCS's port file. It gives up after 15 s without the port files of the agents,
which is fixed in the raylet (ray#65983), and after 30 s without the raylet's registration. `PatientNode` chooses these
ports itself, and waits as long as the process that it waits for lives.
"""

import fcntl
import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from ray._private import services
from ray._private.node import Node
from ray._raylet import (
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    METRICS_AGENT_PORT_NAME,
    METRICS_EXPORT_PORT_NAME,
    RUNTIME_ENV_AGENT_PORT_NAME,
    persist_port,
)

from openrlhf_shear.train.nodes.worker import LOOPBACK
from openrlhf_shear.train.screen.story import say

_AGENT_PORTS = {  # Ray's parameter: the name of the file in which the raylet looks for the port
    "dashboard_agent_listen_port": DASHBOARD_AGENT_LISTEN_PORT_NAME,
    "metrics_agent_port": METRICS_AGENT_PORT_NAME,
    "metrics_export_port": METRICS_EXPORT_PORT_NAME,
    "runtime_env_agent_port": RUNTIME_ENV_AGENT_PORT_NAME,
}
_FIRST_PORT = 10_000
_TELL_SECONDS = 10.0
_LOOK_SECONDS = 0.2
_MOST_SECONDS = 3600.0  # for a process that lives and does nothing
_kept: list[TextIO] = []  # files whose locks keep this process's ports


class NotStartedError(RuntimeError):
    """A process of Ray ended, or did not answer, while Ray started."""


class PatientNode(Node):
    """Node of a private Ray, whose start takes as long as the machine needs."""

    def start_gcs_server(self) -> None:
        """Start the GCS at a port chosen here, and wait until it listens."""
        parameters = self._ray_params
        parameters.gcs_server_port = parameters.gcs_server_port or free_ports(1)[0]
        with _deaf():
            super().start_gcs_server()
        self._wait_for("gcs_server", lambda: _listens(parameters.gcs_server_port))

    def start_api_server(self, **_) -> None:
        """Leave out the dashboard: without it Ray would wait 60 s for a process that only counts usage."""

    def start_log_monitor(self) -> None:
        """Start the monitor, which shows the output of a run that is stopped."""
        with _deaf():
            super().start_log_monitor()

    def start_raylet(self, *args, **options) -> None:
        """Start the raylet with the ports of its agents in place, and wait until the GCS knows it."""
        for (parameter, name), port in zip(_AGENT_PORTS.items(), free_ports(len(_AGENT_PORTS)), strict=True):
            port = getattr(self._ray_params, parameter) or port
            setattr(self._ray_params, parameter, port)
            persist_port(self._session_dir, self._node_id, name, port)
        with _deaf():
            super().start_raylet(*args, **options)
        self._wait_for("raylet", self._is_registered)

    def _is_registered(self) -> bool:
        try:
            return bool(services.get_node(self.gcs_address, self._node_id))
        except RuntimeError:  # not yet
            return False

    def _wait_for(self, name: str, is_there: Callable[[], bool]) -> None:
        """Wait for a process of this node; tell every 10 s that the start is slow.

        Raises:
            NotStartedError: the process has ended; all others of this node are ended then.
        """
        process, began = self.all_processes[name][0].process, time.monotonic()
        last = began
        while not is_there():
            now = time.monotonic()
            if process.poll() is not None or now - began > _MOST_SECONDS:
                cause = _last_words(Path(self._logs_dir), name)
                self.kill_all_processes(check_alive=False, allow_graceful=False)
                raise NotStartedError(f"Ray's {name} ended with exit code {process.returncode}: {cause}")
            if now - last > _TELL_SECONDS:
                last = now
                say(f"starting Ray: waiting for its {name}, {now - began:.0f} s, load {os.getloadavg()[0]:.0f}")
            time.sleep(_LOOK_SECONDS)


@contextmanager
def _deaf() -> Iterator[None]:
    """Start processes that SIGTERM and SIGUSR1 do not reach, nor their children: Ray's, and the actors.

    scancel and a control group send them to every process of a run. The driver hears them, and the others have to live
    until the checkpoint is saved. Ray ends its processes by calls, and by SIGKILL.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def free_ports(count: int) -> list[int]:
    """Return ports of this machine at which nothing listens, and which no other start of this user takes.

    They lie outside the range from which the system takes ports for connections. A lock on a file keeps each for this
    process, since Ray opens some of them minutes later.
    """
    folder = Path(tempfile.gettempdir(), f"shear_ports_{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    first_taken = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(_FIRST_PORT, first_taken if first_taken > 2 * _FIRST_PORT else 1 << 16)
    ports: list[int] = []
    for port in random.SystemRandom().sample(candidates, len(candidates)):
        file = (folder / str(port)).open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            socket.create_server((LOOPBACK, port)).close()
        except OSError:  # another start has it, or something listens
            file.close()
            continue
        _kept.append(file)
        ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"no free port from {candidates[0]} to {candidates[-1]}")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def _last_words(logs: Path, name: str) -> str:
    """Return the last line that a process logged as fatal, else its last line."""
    lines = [
        line.strip()
        for file in sorted(logs.glob(f"{name}*"))
        for line in file.read_text(errors="replace").splitlines()
        if line.strip()
    ]
    fatal = [line for line in lines if " C " in line or "Check failed" in line]
    return (fatal or lines or ["it logged nothing"])[-1][:300]
