"""The one place that knows which isolation exists on this machine, and why. Nothing runs without unless asked for."""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from openrlhf_shear.rewards.jail import seccomp
from openrlhf_shear.rewards.jail.inside import wire

logger = logging.getLogger(__name__)

_START_SECONDS = 60.0  # until what runs in a jail says that it is ready
INSIDE = Path(__file__).parent / "inside"
_PLACE = "/jail"
_PROBE_SECONDS = 30.0
_REAP_SECONDS = 0.5
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

_MECHANISMS = (
    "user, mount, pid, network, ipc, uts and cgroup namespaces (bubblewrap)",
    "no capabilities, no new privileges, no /proc",
    "read-only root, private /tmp of limited size",
    f"seccomp: {len(seccomp.REFUSED.split())} system calls refused",
)
_REMEDIES = """\
install bubblewrap 0.8 or newer (apt-get install bubblewrap util-linux libseccomp2; pip install pyseccomp) and allow \
it user namespaces (on Ubuntu 24.04 an AppArmor profile for bwrap, or sysctl \
kernel.apparmor_restrict_unprivileged_userns=0; in a container a seccomp profile that allows them), or allow \
unsandboxed rewards if every response is trusted"""


class JailError(RuntimeError):
    """No jail works here; the message names the reason and the remedy."""


@dataclass(frozen=True)
class Limits:
    """What each process in a jail may use: address space [MiB], processor time [s], all of /tmp [MiB]."""

    memory_mb: int = 1024
    cpu_seconds: int = 60
    tmp_mb: int = 64


class Jail:
    """Starts scripts behind the isolation that `find_jail` found; `mechanisms` says what protects, to a person.

    `no_fork` is a seccomp program (hexadecimal) that a script inside installs in a child before that runs untrusted
    code: no processes, but threads, and no hand on another process. It is "" only where nothing is sandboxed and
    libseccomp is missing. `is_sandbox`: there is isolation at all.
    """

    def __init__(self, bwrap: str | None, filters: tuple[bytes, bytes], prlimit: str) -> None:
        self._bwrap, self._prlimit, self._base = bwrap, prlimit, filters[0]
        self.no_fork, self.is_sandbox = filters[1].hex(), bwrap is not None
        self.mechanisms = (
            *(_MECHANISMS if bwrap else ()),
            *("a session and an environment of its own", "resource limits (processor, memory, files, core)"),
            *(("seccomp: untrusted code cannot start processes, nor signal or limit others",) if self.no_fork else ()),
        )

    def start(self, script: Path, limits: Limits, **options) -> subprocess.Popen[bytes]:
        """Run `python -I script` inside, which may read the files beside it; stdin (if not given) and stdout are binary
        pipes without buffers. End the process with `kill`. Raises JailError: it could not be started.

        Args:
            packages: those of this interpreter can be imported; without, only the standard library (`-S`).
            stdin: as of `subprocess.Popen`, else a pipe; stderr: as of it, else nowhere.
        """
        # The kernel ends a jail with the *thread* that started it: one thread that lives as long as the process.
        return _spawner.submit(self._popen, script, limits, **options).result()

    def _popen(
        self,
        script: Path,
        limits: Limits,
        packages: bool = False,
        stdin: int = subprocess.PIPE,
        stderr: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        # Without `site`: what a machine's .pth files import is not needed, and can take longer than all else here.
        python = [sys.executable] if packages else [sys._base_executable, "-S"]
        disk = limits.tmp_mb << 20
        most = {"as": limits.memory_mb << 20, "cpu": limits.cpu_seconds, "fsize": disk, "nofile": 128, "core": 0}
        command = [self._prlimit, *(f"--{name}={value}:{value}" for name, value in most.items())]
        pass_fds = ()
        with contextlib.ExitStack() as stack:
            if self._bwrap:
                program, writing = os.pipe()
                stack.callback(os.close, program)
                with os.fdopen(writing, "wb") as pipe:
                    pipe.write(self._base)  # a few KiB, less than a pipe holds
                pass_fds = (program,)
                command += [self._bwrap, "--seccomp", str(program), *_sandbox(script, limits, packages), "--"]
                script = Path(_PLACE, script.name)
            command += [*python, "-I", "-X", "utf8", str(script)]
            options = {"pass_fds": pass_fds, "cwd": "/", "env": _ENVIRONMENT, "start_new_session": True}
            pipes = {"bufsize": 0, "stdin": stdin, "stdout": subprocess.PIPE, "stderr": stderr}
            try:
                return subprocess.Popen(command, **pipes, **options)
            except OSError as error:
                raise JailError(f"no process could be started for a jail: got {error}; {_REMEDIES}") from error


def find_jail(allow_unsandboxed: bool = False) -> Jail:
    """The jail of this machine, probed once a process. Raises JailError: no jail works here; with `allow_unsandboxed`
    untrusted code then runs with resource limits only, which is warned of once.
    """
    return _probed(bool(allow_unsandboxed))


def greet(process: subprocess.Popen[bytes], what: str, remedy: str) -> None:
    """Wait until what runs in a jail says that it is ready; else a JailError names `what` it is and the `remedy`."""
    try:
        hear(process, time.monotonic() + _START_SECONDS)
    except (EOFError, OSError, ValueError) as error:
        raise JailError(f"{what} did not start within {_START_SECONDS:g} s: {error!r}; {remedy}") from error


def tell(process: subprocess.Popen[bytes], message: object, deadline: float) -> None:
    """Send a frame (see `inside.wire`) to what runs in a jail."""
    wire.send(process.stdin.fileno(), message, deadline)


def hear(process: subprocess.Popen[bytes], deadline: float) -> object:
    """The next frame from what runs in a jail."""
    return wire.receive(process.stdout.fileno(), deadline)


def strike(process: subprocess.Popen[bytes]) -> None:
    """Kill a jail from any thread; the one that waits for it reads the end of its pipes, and has `kill` reap it.

    The whole group: of a bubblewrap that is killed alone while it starts, its child waits for ever to be let go on.
    """
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a jail with all that runs in it, reap it and close its pipes. May be called again.

    First what bubblewrap started, so that bubblewrap reaps it: an orphan could stay a zombie in a container.
    """
    if process.poll() is None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # OSError: a kernel without this file
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            if children:
                process.wait(_REAP_SECONDS)
    strike(process)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


@cache
def _probed(allow_unsandboxed: bool) -> Jail:
    bwrap, prlimit = shutil.which("bwrap"), shutil.which("prlimit")
    try:
        filters, problem = seccomp.filters(), None
    except (ImportError, RuntimeError, OSError) as error:
        filters, problem = (b"", b""), f"libseccomp cannot be used: {error}"
    if sys.platform != "linux":
        problem = f"namespaces need Linux: got {sys.platform}"
    elif not bwrap or not prlimit:
        problem = f"{'prlimit' if bwrap else 'bubblewrap'} is not installed"
    elif not problem:
        jail = Jail(bwrap, filters, prlimit)
        problem = _probe(jail)
        if not problem:
            logger.info("jail for untrusted code: %s", "; ".join(jail.mechanisms))
            return jail
        problem = f"bubblewrap fails: {problem}"
    if not allow_unsandboxed:
        raise JailError(f"no jail for untrusted code works on this machine: {problem}; {_REMEDIES}")
    if not prlimit:
        raise JailError(f"untrusted code needs resource limits at least: prlimit is missing; {_REMEDIES}")
    logger.warning("UNSANDBOXED: responses run as this user, with its files and network, because %s", problem)
    return Jail(None, filters, prlimit)


def _probe(jail: Jail) -> str | None:
    """Start a script that does nothing; the reason if that fails."""
    try:
        process = jail.start(INSIDE / "wire.py", Limits(), stderr=subprocess.PIPE)
    except JailError as error:
        return str(error)
    try:
        _, said = process.communicate(timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"it did not start within {_PROBE_SECONDS:g} s"
    finally:
        kill(process)
    return None if process.returncode == 0 else said.decode(errors="replace").strip()[-500:] or "it ended at once"


def _sandbox(script: Path, limits: Limits, packages: bool) -> list[str]:
    """bubblewrap's flags. The root and /dev are memory without a limit, so they end read-only.

    No --new-session: the session that `start` makes has no terminal, and its process group reaches bubblewrap's own
    processes at every moment of their start, when --die-with-parent does not hold yet.
    """
    flags = ["--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
    flags += ["--hostname", "jail", "--die-with-parent", "--clearenv"]
    for name, value in _ENVIRONMENT.items():
        flags += ["--setenv", name, value]
    for library in ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(library):
            flags += ["--symlink", os.readlink(library), library]
        elif os.path.isdir(library):
            flags += ["--ro-bind", library, library]
    flags += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    flags += ["--size", str(limits.tmp_mb << 20), "--tmpfs", "/tmp"]  # before a Python that is installed below it
    for prefix in dict.fromkeys((sys.base_prefix, sys.prefix) if packages else (sys.base_prefix,)):
        flags += ["--ro-bind", prefix, prefix]
    flags += ["--ro-bind", str(script.resolve().parent), _PLACE, "--dev", "/dev", "--remount-ro", "/dev"]
    return [*flags, "--remount-ro", "/dev/pts", "--chdir", "/tmp", "--remount-ro", "/"]


def _renew_spawner() -> None:
    global _spawner
    _spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jails")


_renew_spawner()
os.register_at_fork(after_in_child=_renew_spawner)  # a fork has the executor without its thread
