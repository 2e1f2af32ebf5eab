"""Commands that distributed tests start: with a log, with patience, and without leftovers."""

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

# On a machine with two cores no job takes more than two minutes, and no wait more than half a minute. Both limits only
# end hanging jobs, so they are far above that. Set PATIENCE on slower machines.
PATIENCE = float(os.environ.get("OPENRLHF_SHEAR_TEST_PATIENCE", "1"))
JOB_SECONDS, WAIT_SECONDS = 1800 * PATIENCE, 600 * PATIENCE
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
KEEPER = Path(__file__).with_name("keeper.py")
TAIL = 6000  # characters of a log that a failure shows


@dataclass(frozen=True)
class Ended:
    """A command that ended: its exit code, and what it wrote, errors included."""

    code: int
    log: str


class Jobs:
    """The commands of one test, each below a keeper; their logs are files of `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._started: list[tuple[str, subprocess.Popen]] = []

    def start(self, *words: object, **options) -> subprocess.Popen:
        """Start a command that runs until it ends or is stopped; by default it starts its Ray.

        `options` are those of `subprocess.Popen`.
        """
        options = {"env": environment(RAY_ADDRESS="local"), "cwd": ROOT} | options
        command = [str(word) for word in words]
        with self.log(len(self._started)).open("w") as log:
            keeper = [sys.executable, "-I", str(KEEPER), *command]
            process = subprocess.Popen(keeper, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)
        self._started.append((" ".join(command[:4]), process))
        return process

    def run(self, *words: object, **options) -> Ended:
        """Run a command to its end."""
        return self.finish(self.start(*words, **options))

    def finish(self, process: subprocess.Popen) -> Ended:
        """Wait for a started command to end."""
        (number,) = (i for i, (_, started) in enumerate(self._started) if started is process)
        try:
            process.wait(JOB_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it has not ended after {JOB_SECONDS:g} s: {self._started[number][0]}")
        return Ended(process.returncode, self.log(number).read_text())

    def log(self, number: int) -> Path:
        return self.folder / f"{number}.log"

    @property
    def last_log(self) -> Path:
        """The log of the command that was started last."""
        return self.log(len(self._started) - 1)

    def stop(self) -> None:
        """End the commands that still run, the last first."""
        for _, process in reversed(self._started):
            process.terminate()
            process.wait()

    def tails(self) -> list[tuple[str, str]]:
        """What a report shows of each command: a title and the end of its log."""
        return [
            (f"{name} ... (exit code {process.poll()})", self.log(number).read_text()[-TAIL:])
            for number, (name, process) in enumerate(self._started)
        ]


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with our Python first in PATH, without variables of Ray and of tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHONUNBUFFERED"))}
    kept["RAY_prestart_worker_first_driver"] = "0"  # each idle worker takes seconds to start
    # After these times a raylet ends, and the pytest that joined it ends too.
    kept["RAY_agent_register_timeout_ms"] = str(round(1000 * WAIT_SECONDS))
    kept["RAY_health_check_timeout_ms"] = str(round(1000 * WAIT_SECONDS))
    return kept | {"PATH": f"{BIN}:{os.environ['PATH']}"} | more


def free_ports(count: int) -> list[int]:
    """Return free ports, outside the ranges that the kernel and Ray's workers choose from."""
    ports: set[int] = set()
    while len(ports) < count:
        with socket.socket() as tried:
            port = random.SystemRandom().randrange(30_000, 32_700)
            if tried.connect_ex(("127.0.0.1", port)) != 0:
                ports.add(port)
    return list(ports)


def wait_until(condition: Callable[[], object], what: str, pause: float = 1.0) -> None:
    """Ask every `pause` seconds.

    Raises:
        pytest.fail.Exception: it has not come true after `WAIT_SECONDS`.
    """
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"{what}: not after {WAIT_SECONDS:g} s")
        time.sleep(pause)


@dataclass(frozen=True)
class Head:
    """A Ray head on this machine: its address, its dashboard's address, and the environment of its clients."""

    address: str
    dashboard: str
    variables: dict[str, str]


@contextmanager
def ray_head(logs: Path, *words: object, host: str = "127.0.0.1", token: str = "") -> Iterator[Head]:
    """Run a head as a user starts it, at free ports; its log is a file of `logs`."""
    variables = environment(**({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}))
    gcs, dashboard, client, agent = free_ports(4)
    jobs = Jobs(logs)
    # A short path: paths of sockets have at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray_", dir="/tmp", ignore_cleanup_errors=True) as folder:
        process = jobs.start(
            *(BIN / "ray", "start", "--head", "--block", "--disable-usage-stats", "--node-ip-address", host),
            *("--port", gcs, "--dashboard-port", dashboard, "--ray-client-server-port", client),
            *("--dashboard-agent-listen-port", agent, "--temp-dir", folder, *words),
            env=variables,
        )

        def started() -> bool:
            assert process.poll() is None, f"the Ray head ended: {jobs.tails()}"
            return "block forever" in jobs.log(0).read_text()  # the head's last line, once others may join

        try:
            wait_until(started, "the Ray head has started")
            yield Head(f"{host}:{gcs}", f"http://{host}:{dashboard}", variables)
        finally:
            jobs.stop()
