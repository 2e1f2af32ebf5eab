"""Jails by bubblewrap. Only this module knows which isolation exists on this machine, and why.

Nothing runs without isolation unless asked for.
"""

import contextlib
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from openrlhf_shear.rewards.jail import another_user, cgroups, forbidden, seccomp
from openrlhf_shear.rewards.jail.inside import wire

logger = logging.getLogger(__name__)

_START_SECONDS = 60.0  # until a process in a jail says that it is ready
_LOOK = "see if the machine is overloaded or lacks memory, and if `import math_verify` works here"
INSIDE = Path(wire.__file__).resolve().parent  # scripts that every jail has
_PLACE = "/rewards"  # where a jail has the folders of scripts
_PROBE_SECONDS = 30.0
_REAP_SECONDS = 0.5
_THREADS = 64  # of a program, including the few processes of its jail
# Limits of every process in a jail. They also bound what the kernel counts by user for the whole machine: pending
# signals and locked memory.
_LIMITED = {"nofile": 128, "core": 0, "sigpending": 128, "memlock": 0, "msgqueue": 0}
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

_MECHANISMS = (
    "user, mount, pid, network, ipc, uts and cgroup namespaces (bubblewrap)",
    "no capabilities, no new privileges, no /proc",
    "read-only root, private /tmp of limited size",
    f"seccomp: {len(seccomp.REFUSED.split())} system calls refused, and all newer calls",
)
_REMEDIES = f"""\
install bubblewrap 0.7 or newer (apt-get install bubblewrap util-linux libseccomp2; pip install pyseccomp) and allow \
it user namespaces. That takes, on Ubuntu 24.04, an AppArmor profile for bwrap, or sysctl \
kernel.apparmor_restrict_unprivileged_userns=0; in Docker, --security-opt seccomp=unconfined, and where the host has \
AppArmor also --security-opt apparmor=unconfined; {forbidden.ELSEWHERE}; or allow unsandboxed rewards if every \
response is trusted"""


class JailError(RuntimeError):
    """No jail works here; the message names the reason and the remedy."""


@dataclass(frozen=True)
class Limits:
    """Limits of each process in a jail: address space [MiB], processor time [s]; and of all of /tmp [MiB]."""

    memory_mb: int = 1024
    cpu_seconds: int = 60
    tmp_mb: int = 64


class JailProcess(subprocess.Popen):
    """A process in a jail. Its stdin and stdout are binary pipes without buffers."""

    group: Sequence[Path] = ()  # folders of its control group

    def greet(self) -> None:
        """Wait until it says that it is ready. Raises JailError: it will not be ready."""
        began = time.monotonic()
        try:
            self.hear(began + _START_SECONDS)
        except TimeoutError as error:
            raise JailError(f"a jail did not start within {_START_SECONDS:g} s; {_LOOK}") from error
        except (EOFError, OSError, ValueError) as error:
            seconds = time.monotonic() - began
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(_REAP_SECONDS)
            ended = "closed its pipe" if self.returncode is None else f"ended with exit code {self.returncode}"
            raise JailError(f"a jail {ended} after {seconds:.1f} s, before it was ready: {error}; {_LOOK}") from error

    def tell(self, message: object, deadline: float | None = None) -> None:
        """Send a frame (see `inside.wire`)."""
        wire.send(self.stdin.fileno(), message, deadline)

    def hear(self, deadline: float) -> object:
        """Return the next frame."""
        return wire.receive(self.stdout.fileno(), deadline)

    def kill(self) -> None:
        """Kill the jail, from any thread. The thread that waits for it reads the end of its pipes, and calls `end`.

        The whole group is killed. If bubblewrap is killed alone while it starts, its child waits for ever for the word
        to go on.
        """
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the jail with all that runs in it, reap it and close its pipes. May be called again.

        The children of bubblewrap are killed first, so that bubblewrap reaps them: an orphan could stay a zombie in a
        container.
        """
        if self.poll() is None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # OSError: a kernel without this file
                children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
                for child in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(child), signal.SIGKILL)
                if children:
                    self.wait(_REAP_SECONDS)
        self.kill()
        self.wait()
        cgroups.remove(self.group)
        for pipe in filter(None, (self.stdin, self.stdout, self.stderr)):
            pipe.close()


class Jail:
    """Starts scripts behind the isolation that `find_jail` found. `mechanisms` describes the protection to a person.

    `no_fork` is a seccomp program (hexadecimal). A script inside installs it in a child before that child runs
    untrusted code. It allows threads but no processes, and no access to other processes. It is "" only if nothing is
    sandboxed and libseccomp is missing. `is_sandbox`: there is isolation at all. `threads`: the limit (RLIMIT_NPROC)
    that such a child sets itself, 0 if it would not hold. `has_group`: each jail has a control group.
    """

    def __init__(
        self, bwrap: str | None, filters: tuple[bytes, bytes], prlimit: str, changes_user: bool = False
    ) -> None:
        self._bwrap, self._prlimit, self._base, self._changes_user = bwrap, prlimit, filters[0], changes_user
        self.no_fork, self.is_sandbox = filters[1].hex(), bwrap is not None
        self.threads, self.notes = _THREADS if bwrap else 0, ()
        self.has_group = self.is_sandbox and cgroups.work()

    @property
    def lacks(self) -> set[str]:
        """Escapes (see `escapes`) that it cannot refuse on this machine."""
        threads = set() if self.threads or self.has_group else {"threads"}
        return threads | ({"own what is root's"} if os.geteuid() == 0 and not self._changes_user else set())

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return (
            *(_MECHANISMS if self._bwrap else ()),
            *(("a separate user, not root",) if self._changes_user else ()),
            *(("a control group (processes and threads, processors)",) if self.has_group else ()),
            *("a separate session and environment", "resource limits (processor, memory, files, core)"),
            *(("seccomp: untrusted code cannot start processes, nor signal or limit others",) if self.no_fork else ()),
            *((f"at most {self.threads} threads",) if self.threads else ()),
            *self.notes,
        )

    def start(self, script: Path, limits: Limits, **options) -> JailProcess:
        """Run `python -I script` inside, which may read the files beside it and `INSIDE`. The caller ends the process.

        Raises JailError: it could not be started.

        Args:
            packages: make the packages of this interpreter importable; else only the standard library (`-S`).
            stdin: as for `subprocess.Popen`, else a pipe; stderr: as for it, else nowhere.
        """
        # The kernel ends a jail with the *thread* that started it. This thread lives as long as the process.
        return _spawner.submit(self._popen, script.resolve(), limits, **options).result()

    def _popen(
        self,
        script: Path,
        limits: Limits,
        packages: bool = False,
        stdin: int = subprocess.PIPE,
        stderr: int = subprocess.DEVNULL,
    ) -> JailProcess:
        # Without `site`: imports in a machine's .pth files are not needed, and can take longer than the whole start.
        python = [sys.executable] if packages else [sys._base_executable, "-S"]
        disk = limits.tmp_mb << 20
        most = _LIMITED | {"as": limits.memory_mb << 20, "cpu": limits.cpu_seconds, "fsize": disk}
        limited = {name: _at_most(name, value) for name, value in most.items()}
        group = cgroups.make() if self.has_group else []
        command = cgroups.enter(group) if group else []
        command += [self._prlimit, *(f"--{name}={value}:{value}" for name, value in limited.items())]
        pass_fds = ()
        with contextlib.ExitStack() as stack:
            if self._bwrap:
                program = os.memfd_create("seccomp")
                stack.callback(os.close, program)
                os.pwrite(program, self._base, 0)
                pass_fds = (program,)
                found = _view().found if os.geteuid() == 0 else str
                number, _ = another_user.user() if self._changes_user else (None, "")
                command += another_user.switch(number) if number is not None else []
                command += [self._bwrap, "--seccomp", str(program), *_sandbox(script, limits, packages, found), "--"]
                script = _place(script.parent) / script.name
            command += [*python, "-I", "-X", "utf8", str(script)]
            options = {"pass_fds": pass_fds, "cwd": "/", "env": _ENVIRONMENT, "start_new_session": True}
            pipes = {"bufsize": 0, "stdin": stdin, "stdout": subprocess.PIPE, "stderr": stderr}
            try:
                process = JailProcess(command, **pipes, **options)
                process.group = group
                return process
            except OSError as error:
                cgroups.remove(group)
                raise JailError(f"no process could be started for a jail: got {error}; {_REMEDIES}") from error


def find_jail(allow_unsandboxed: bool = False) -> Jail:
    """Return the jail of this machine, probed once a process. Raises JailError: no jail works here.

    With `allow_unsandboxed`, untrusted code then runs with resource limits only; a single warning says so.
    """
    return probed(bool(allow_unsandboxed))


@cache
def probed(allow_unsandboxed: bool) -> Jail:
    """Probe the jails of this machine for `find_jail`; `probed.cache_clear()` lets it probe again."""
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
        jail, problem = _best(bwrap, filters, prlimit)
        if not problem:
            logger.info("jail for untrusted code: %s", "; ".join(jail.mechanisms))
            return jail
        problem = f"bubblewrap fails: {' - '.join([problem, *forbidden.forbids()])}"
    if not allow_unsandboxed:
        raise JailError(f"no jail for untrusted code works on this machine: {problem}; {_REMEDIES}")
    if not prlimit:
        raise JailError(f"untrusted code needs resource limits at least: prlimit is missing; {_REMEDIES}")
    logger.warning("UNSANDBOXED: responses run as this user, with its files and network, because %s", problem)
    return Jail(None, filters, prlimit)


def _best(bwrap: str, filters: tuple[bytes, bytes], prlimit: str) -> tuple[Jail, str | None]:
    """Return the best jail, and what is wrong if none works.

    If this process is root, it has another user if there is one.
    """
    is_root = os.geteuid() == 0
    number, why = another_user.user() if is_root else (None, "")
    if number is not None:
        jail = Jail(bwrap, filters, prlimit, changes_user=True)
        why = _probe(jail, packages=True)
        if not why:
            return jail, None
    jail = Jail(bwrap, filters, prlimit)
    problem = _probe(jail)
    jail.notes += (f"as root, because another user cannot run it: {why}",) if is_root else ()
    return jail, problem


def _at_most(name: str, value: int) -> int:
    """Return a resource limit, no higher than this process may set it."""
    _, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _probe(jail: Jail, packages: bool = False) -> str | None:
    """Count in a jail the threads that can be started under a limit of 24; return the reason if that fails.

    `jail.threads` becomes 0 if such a limit does not hold, or counts processes of other jails.
    """
    try:
        process = jail.start(INSIDE / "escapes.py", Limits(), packages=packages, stderr=subprocess.PIPE)
    except JailError as error:
        return str(error)
    attempt = "resource.setrlimit(resource.RLIMIT_NPROC, (24, 24)) or str(threads(32))"
    request = json.dumps({"names": {"MARK": ""}, "attempts": {"threads": attempt}})
    try:
        counted, errors = process.communicate(request.encode() + b"\n", timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"it did not start within {_PROBE_SECONDS:g} s"
    finally:
        process.end()
    if process.returncode != 0:
        return errors.decode(errors="replace").strip()[-500:] or f"it ended with exit code {process.returncode}"
    _, outcome = json.loads(counted)  # WORKED: '22'
    if not outcome.startswith("WORKED"):
        return outcome
    count = int(outcome.split("'")[1])
    if not 16 <= count <= 24:
        jail.threads = 0
    if not jail.threads and not jail.has_group:
        how = "sets no such limit for root" if count > 24 else "counts those of other jails, too"
        jail.notes += (f"no limit on threads, as the kernel {how}",)
    return None


def _sandbox(script: Path, limits: Limits, packages: bool, found: Callable[[str], str]) -> list[str]:
    """Return bubblewrap's flags; `found` says where the jail's user finds a folder.

    The root and /dev are memory without a limit, so they end read-only.

    No --new-session: the session that `start` makes has no terminal. Its process group reaches bubblewrap's own
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
    flags += ["--size", str(limits.tmp_mb << 20), "--tmpfs", "/tmp"]  # first: a Python may be installed below /tmp
    for prefix in dict.fromkeys((sys.base_prefix, sys.prefix) if packages else (sys.base_prefix,)):
        flags += ["--ro-bind", found(prefix), prefix]
    for folder in dict.fromkeys((INSIDE, script.parent)):
        flags += ["--ro-bind", found(str(folder)), str(_place(folder))]
    flags += ["--dev", "/dev", "--remount-ro", "/dev", "--remount-ro", "/dev/pts"]
    return [*flags, "--chdir", "/tmp", "--remount-ro", "/"]


def _place(folder: Path) -> Path:
    """Return where a jail has a folder of scripts. Scripts find `INSIDE` from their own folder, as in `rewards/`."""
    return Path(_PLACE, folder.parent.name, folder.name)


def _renew_spawner() -> None:
    global _spawner
    _spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jails")
    _view.cache_clear()


@cache
def _view() -> another_user.View:
    """Return the view of the thread that starts jails."""
    return another_user.View()


_renew_spawner()
os.register_at_fork(after_in_child=_renew_spawner)  # a fork gets the executor without its thread
