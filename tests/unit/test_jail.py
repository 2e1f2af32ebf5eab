"""What code in a jail can reach: nothing. Each escape is tried for real, and names what refuses it."""

from __future__ import annotations

import base64
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from openrlhf_shear.rewards.jail import Jail, JailError, Limits, find_jail, kill
from openrlhf_shear.rewards.jail import bubblewrap as jails
from openrlhf_shear.rewards.jail.escapes import ESCAPES, MARK, try_escapes

STALL_SECONDS = 60

_FORKS = """
import base64, os, subprocess, sys, threading
sys.path.insert(0, os.path.dirname(__file__))
from confine import confine
confine(base64.b64decode(sys.stdin.readline()), 512, 5)
true = sys.executable, ["python", "-c", "0"]
for start in (os.fork, lambda: subprocess.run(true[1], executable=true[0]), lambda: os.posix_spawn(*true, {})):
    try:
        start()
        print("started", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
"""


@pytest.fixture(scope="module")
def jail() -> Jail:
    try:
        return find_jail()
    except JailError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def attempts(jail: Jail) -> dict[str, str]:
    """Every escape, tried in one jail."""
    return {name: said for name, _, said in try_escapes(jail)}


@pytest.mark.parametrize("name", ESCAPES)
def test_escape_is_refused(attempts: dict[str, str], name: str):
    assert attempts.get(name, "the script ended").startswith("refused"), f"{ESCAPES[name][1]}: {attempts.get(name)}"


def test_the_parent_sees_no_file_of_the_jail(attempts: dict[str, str]):
    assert attempts["a file the host sees"] == "refused"  # written there
    assert not Path("/tmp", MARK).exists()


def test_what_protects_is_named(jail: Jail):
    told = "; ".join(jail.mechanisms)
    for word in ("namespaces", "seccomp", "resource limits", "read-only", "/proc", "processes"):
        assert word in told


def test_the_filter_against_processes_leaves_threads(jail: Jail, tmp_path: Path):
    shutil.copy(jails.INSIDE / "confine.py", tmp_path)
    script = tmp_path / "forks.py"
    script.write_text(_FORKS)
    process = jail.start(script, Limits())
    try:
        out, _ = process.communicate(base64.b64encode(jail.no_fork) + b"\n", timeout=STALL_SECONDS)
    finally:
        kill(process)
    assert out.decode().split() == ["PermissionError", "PermissionError", "PermissionError", "thread"]


def test_packages_only_where_asked(jail: Jail, tmp_path: Path):
    script = tmp_path / "imports.py"
    script.write_text("import sys\nprint(any('numpy' in name or '.venv' in name for name in sys.path))\nimport numpy\n")
    process = jail.start(script, Limits(), packages=True)
    try:
        process.communicate(timeout=STALL_SECONDS)
        assert process.returncode == 0
    finally:
        kill(process)


def test_no_jail_is_a_refusal_with_the_remedy(monkeypatch):
    jails._probed.cache_clear()
    monkeypatch.setattr(jails.shutil, "which", lambda name: None if name == "bwrap" else f"/usr/bin/{name}")
    with pytest.raises(JailError, match=r"bubblewrap is not installed.*apt-get install bubblewrap"):
        find_jail()
    jails._probed.cache_clear()


def test_a_jail_that_fails_is_a_refusal_with_its_words(monkeypatch, tmp_path: Path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n")
    broken.chmod(0o755)
    jails._probed.cache_clear()
    which = jails.shutil.which
    monkeypatch.setattr(jails.shutil, "which", lambda name: str(broken) if name == "bwrap" else which(name))
    with pytest.raises(JailError, match=r"uid map: Permission denied.*apparmor_restrict_unprivileged_userns"):
        find_jail()
    jails._probed.cache_clear()


def test_a_missing_libseccomp_is_a_refusal(monkeypatch):
    jails._probed.cache_clear()
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(JailError, match="libseccomp cannot be used"):
        find_jail()
    jails._probed.cache_clear()


def test_unsandboxed_runs_only_when_asked_and_says_so(monkeypatch, caplog, tmp_path: Path):
    jails._probed.cache_clear()
    which = jails.shutil.which
    monkeypatch.setattr(jails.shutil, "which", lambda name: None if name == "bwrap" else which(name))
    with caplog.at_level(logging.WARNING):
        bare = find_jail(allow_unsandboxed=True)
        assert find_jail(allow_unsandboxed=True) is bare
    assert [record.message for record in caplog.records if "UNSANDBOXED" in record.message].__len__() == 1
    assert not bare.sandboxed
    script = tmp_path / "limits.py"
    script.write_text("import resource\nprint(resource.getrlimit(resource.RLIMIT_AS)[1] >> 20)\n")
    process = bare.start(script, Limits(memory_mb=777))
    try:
        assert process.communicate(timeout=STALL_SECONDS)[0].split() == [b"777"]
    finally:
        kill(process)
    jails._probed.cache_clear()


def test_a_jail_outlives_the_thread_that_asked_for_it(jail: Jail, tmp_path: Path):
    script = tmp_path / "waits.py"
    script.write_text("input()\nprint('alive')\n")
    started = []
    thread = threading.Thread(target=lambda: started.append(jail.start(script, Limits())))
    thread.start()
    thread.join()
    time.sleep(0.3)
    try:
        assert started[0].communicate(b"\n", timeout=STALL_SECONDS)[0] == b"alive\n"
    finally:
        kill(started[0])


def test_a_jail_dies_with_its_process(jail: Jail, tmp_path: Path):
    script = tmp_path / "sleeps_until_its_parent_dies.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    starter = (
        "import sys, time\nfrom pathlib import Path\nfrom openrlhf_shear.rewards.jail import Limits, find_jail\n"
        "process = find_jail().start(Path(sys.argv[1]), Limits())\n"
        "print(process.stdout.readline(), flush=True)\ntime.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", starter, str(script)], stdout=subprocess.PIPE)
    try:
        assert b"up" in process.stdout.readline()
        assert processes_of(script.name)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert gone(script.name)


def test_nothing_is_left_after_kills(jail: Jail, tmp_path: Path):
    script = tmp_path / "forks_and_waits_in_a_jail.py"
    script.write_text("import os, time\nos.fork()\nos.setsid()\nprint('up', flush=True)\ntime.sleep(600)\n")
    before = descriptors()
    for delay in (None, None, *range(0, 40, 2)):  # ms: bubblewrap's start has moments in which it is hard to kill
        process = jail.start(script, Limits())
        process.stdout.read(2) if delay is None else time.sleep(delay / 1000)
        kill(process)
        kill(process)
        assert process.returncode is not None
        assert delay is not None or not group_of(process.pid)  # no zombie either
    assert descriptors() == before
    assert gone(script.name)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def processes_of(name: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if name.encode() in (folder / "cmdline").read_bytes() and folder.name != str(os.getpid()):
                found.append(folder.name)
        except OSError:  # it ended meanwhile
            continue
    return found


def group_of(leader: int) -> list[str]:
    """What is left of a process group, zombies included: state and name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, rest = (folder / "stat").read_text().rsplit(")", 1)
        except OSError:
            continue
        if int(rest.split()[2]) == leader:
            found.append(f"{rest.split()[0]} {name}")
    return found


def gone(name: str) -> bool:
    """Whether all processes with a name in their command line end; the kernel takes a moment."""
    deadline = time.monotonic() + STALL_SECONDS
    while processes_of(name) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not processes_of(name)


def test_a_python_installed_below_tmp_is_there_too(jail: Jail, tmp_path: Path):
    """The jail has a /tmp of its own, which must not hide it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    script = tmp_path / "says_where.py"
    script.write_text("import os, sys\nprint(sys.prefix)\nopen(sys.prefix + '/x', 'w')\n")
    code = (
        "import sys\nfrom pathlib import Path\nfrom openrlhf_shear.rewards.jail import Limits, find_jail\n"
        f"process = find_jail().start(Path({str(script)!r}), Limits(), packages=True)\n"
        "print(process.communicate()[0].decode(), process.returncode)"
    )
    paths = os.pathsep.join(filter(None, sys.path))
    python = tmp_path / "venv" / "bin" / "python"
    done = subprocess.run(
        [python, "-c", code], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == [str(tmp_path / "venv"), "1"], done.stderr  # there, and read-only
