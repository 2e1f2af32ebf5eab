"""Code in a jail reaches nothing outside. Each escape is tried for real, and names the mechanism that refuses it."""

import errno
import json
import logging
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from processes import PATIENCE, descriptors, stats, wait_until

from openrlhf_shear.rewards.jail import Jail, JailError, JailProcess, Limits, another_user, cgroups, find_jail
from openrlhf_shear.rewards.jail import bubblewrap as jails
from openrlhf_shear.rewards.jail.escapes import ESCAPES, ESCAPES_OF_A_PROGRAM, LEFT_BEHIND, MARK, try_escapes

_FORKS = """
import os, resource, signal, subprocess, sys, threading
sys.path.insert(0, os.path.dirname(__file__))
from runner import confine
confine(sys.stdin.readline(), {resource.RLIMIT_AS: 512 << 20})
os.kill(os.getpid(), 0)
signal.raise_signal(signal.SIGCONT)
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

_LOOKS = """
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "jail", "inside"))
import wire
for at, _, names in os.walk("/rewards"):
    for name in names:
        print(os.path.join(at, name), bool(os.statvfs(at).f_flag & os.ST_RDONLY))
"""


@pytest.fixture(scope="module")
def jail(needs_jail) -> Jail:
    return find_jail()


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """Make scripts readable for all: a jail may run as another user."""
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def probed_anew():
    """Clear the cache of `find_jail` before and after the test."""
    jails.probed.cache_clear()
    yield
    jails.probed.cache_clear()


def run(jail: Jail, script: Path, text: str, given: bytes = b"", **options) -> bytes:
    """Return the output of a script in a jail; it must exit with 0."""
    script.write_text(text)
    process = jail.start(script, options.pop("limits", Limits()), **options)
    try:
        out, _ = process.communicate(given, timeout=PATIENCE)
        assert process.returncode == 0
        return out
    finally:
        process.end()


@pytest.mark.parametrize("home", [None, "/"])
def test_every_escape_is_refused_by_a_named_mechanism(jail: Jail, monkeypatch, home):
    if home:  # as in a container without a user
        monkeypatch.setenv("HOME", home)
    tried = try_escapes(jail)
    names = [name for name in (*ESCAPES, *ESCAPES_OF_A_PROGRAM, *LEFT_BEHIND) if name not in jail.lacks]
    assert [name for name, _, _ in tried] == names
    assert [(name, by, said) for name, by, said in tried if not said.startswith("refused")] == []
    assert ("a file the host sees", "private /tmp", "refused") in tried, "written there"
    assert not Path("/tmp", MARK).exists()
    told = "; ".join(jail.mechanisms)
    for word in ("namespaces", "seccomp", "resource limits", "read-only", "/proc", "processes"):
        assert word in told
    by_filter = [(name, said) for name, by, said in tried if by.startswith("seccomp") and name not in LEFT_BEHIND]
    refusals = (f"({errno.EPERM}, ", f"({errno.ENOSYS}, ")
    assert [(name, said) for name, said in by_filter if not any(word in said for word in refusals)] == []


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are of x86_64")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_root_s_jails_are_another_user_s_each_and_leave_the_devices_as_they_are(jail: Jail, tmp_path: Path):
    if another_user.user()[0] is None:
        pytest.skip("no other user can be had here")
    script = tmp_path / "waits_as_another.py"
    script.write_text("input()\n")
    devices = [(path, path.stat().st_mode, path.stat().st_ctime_ns) for path in (Path("/dev/null"), Path("/dev/zero"))]
    processes = [jail.start(script, Limits()) for _ in range(2)]
    try:
        assert wait_until(lambda: len(processes_of(script.name)) >= 4)
        users = {os.stat(f"/proc/{pid}").st_uid for pid in processes_of(script.name)}
        assert len(users) == 2 and 0 not in users
    finally:
        for process in processes:
            process.end()
    assert "a separate user, not root" in jail.mechanisms
    try_escapes(jail)
    assert devices == [(path, path.stat().st_mode, path.stat().st_ctime_ns) for path, _, _ in devices]
    assert os.access("/dev/null", os.W_OK), "read-only in the jails' view alone"


@pytest.mark.usefixtures("probed_anew")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_jails_of_root_say_why_they_are(needs_jail, monkeypatch):
    monkeypatch.setattr(another_user, "user", lambda: (None, "this container has no other user"))
    monkeypatch.setattr(cgroups, "parents", list)
    jail = find_jail()
    assert jail.lacks == {"threads", "own what is root's"}
    tried = try_escapes(jail)
    assert tried and [row for row in tried if not row[-1].startswith("refused")] == []
    told = "; ".join(jail.mechanisms)
    assert "as root, because another user cannot run it: this container has no other user" in told
    assert "no limit on threads" in told and "at most" not in told


@pytest.mark.usefixtures("probed_anew")
def test_a_control_group_limits_threads_where_the_kernel_does_not(needs_jail, monkeypatch, tmp_path: Path):
    if not cgroups.work():
        pytest.skip("no control group can be made here")
    before = groups()
    monkeypatch.setattr(another_user, "user", lambda: (None, "this container has no other user"))
    jail = find_jail()
    assert "a control group" in "; ".join(jail.mechanisms) and "no limit on threads" not in "; ".join(jail.mechanisms)
    request = json.dumps({"names": {"MARK": ""}, "attempts": {"threads": "threads(908)"}}).encode()
    tried = json.loads(run(jail, tmp_path / "threads.py", (jails.INSIDE / "escapes.py").read_text(), request + b"\n"))
    assert 50 < int(tried[1].removeprefix("WORKED: ")) < 80
    assert wait_until(lambda: groups() <= before)


def groups() -> set[Path]:
    return {folder for parent, _, _ in cgroups.parents() for folder in parent.glob(f"*-{os.getpid()}-*")}


def test_control_groups_are_looked_for_where_they_can_be_made(monkeypatch, tmp_path: Path):
    """Version 1: below this process's own. Version 2: beside it, as a group with processes hands on no controllers."""
    first, second = tmp_path / "one", tmp_path / "two"
    (first / "mine").mkdir(parents=True)
    (second / "app" / "mine").mkdir(parents=True)
    for folder, handed in ((second, "pids cpu"), (second / "app", "pids"), (second / "app" / "mine", "")):
        (folder / "cgroup.subtree_control").write_text(handed)
        (folder / "cgroup.procs").write_text("")
    files = {
        "/proc/self/cgroup": "3:cpu,cpuacct:/docker/x/mine\n0::/app/mine\n",
        "/proc/self/mountinfo": f"30 1 0:1 /docker/x {first} rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"31 1 0:2 / {second} rw,relatime shared:1 - cgroup2 cgroup rw\n32 1 0:3 / /tmp rw - tmpfs tmpfs rw\n",
    }
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: files.get(str(path)) or read(path))
    quota = (first / "mine", "cpu.cfs_quota_us", "200000")
    assert cgroups.parents() == [quota, (second / "app", "pids.max", "80")]
    (second / "app" / "cgroup.subtree_control").write_text("memory")
    assert cgroups.parents() == [quota]
    monkeypatch.setattr(Path, "read_text", lambda path: read(Path("/nowhere")))
    assert cgroups.parents() == []


def test_a_jail_that_ends_at_once_says_so(jail: Jail, tmp_path: Path):
    script = tmp_path / "ends.py"
    script.write_text("import os\nos._exit(7)\n")
    process = jail.start(script, Limits())
    try:
        with pytest.raises(JailError, match=r"a jail ended with exit code 7 after \d+\.\d s, .*; see if the") as raised:
            process.greet()
        assert "within" not in str(raised.value)
    finally:
        process.end()


def test_the_filter_against_processes_leaves_threads_and_signals_to_itself(jail: Jail, tmp_path: Path):
    for script in ("runner.py", "wire.py"):
        shutil.copy(jails.INSIDE / script, tmp_path)
    said = run(jail, tmp_path / "forks.py", _FORKS, jail.no_fork.encode() + b"\n")
    assert said.decode().split() == ["PermissionError", "PermissionError", "PermissionError", "thread"]


def test_a_jail_reads_the_common_scripts_and_the_folder_of_its_own(jail: Jail, tmp_path: Path, monkeypatch):
    """If this is root, only root may look up these folders, as pytest makes them: the jail's view offers them."""
    code, maths, common = (tmp_path / room / "inside" for room in ("code", "maths", "jail"))
    shutil.copytree(jails.INSIDE, common, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (code, maths):
        folder.mkdir(parents=True)
        (folder / "beside.py").write_text("")
    monkeypatch.setattr(jails, "INSIDE", common)
    seen = dict(line.split() for line in run(jail, code / "looks.py", _LOOKS).decode().splitlines())
    names = [f"code/inside/{name}.py" for name in ("beside", "looks")]
    names += [f"jail/inside/{path.name}" for path in common.iterdir()]
    assert seen == {f"/rewards/{name}": "True" for name in names}
    assert {"/rewards/jail/inside/runner.py", "/rewards/jail/inside/wire.py"} <= seen.keys()


@pytest.mark.usefixtures("probed_anew")
def test_no_bubblewrap_and_no_libseccomp_are_refusals_with_the_remedy(monkeypatch):
    with (
        monkeypatch.context() as patch,
        pytest.raises(JailError, match=r"bubblewrap is not installed.*apt-get install"),
    ):
        patch.setattr(shutil, "which", lambda name: None)
        find_jail()
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(JailError, match="libseccomp cannot be used"):
        find_jail()


@pytest.mark.usefixtures("no_bubblewrap")
def test_unsandboxed_runs_only_when_asked_and_says_so(caplog, tmp_path: Path):
    with caplog.at_level(logging.WARNING):
        bare = find_jail(allow_unsandboxed=True)
        assert find_jail(allow_unsandboxed=True) is bare
    assert sum("UNSANDBOXED" in record.message for record in caplog.records) == 1
    assert not any("namespaces" in mechanism for mechanism in bare.mechanisms)
    limit = "import resource\nprint(resource.getrlimit(resource.RLIMIT_AS)[1] >> 20)\n"
    assert run(bare, tmp_path / "limits.py", limit, limits=Limits(memory_mb=777)) == b"777\n"


def test_a_jail_outlives_the_thread_that_asked_for_it(jail: Jail, tmp_path: Path):
    script = tmp_path / "waits.py"
    script.write_text("input()\nprint('alive')\n")
    started = []
    thread = threading.Thread(target=lambda: started.append(jail.start(script, Limits())))
    thread.start()
    thread.join()
    time.sleep(0.3)
    try:
        assert started[0].communicate(b"\n", timeout=PATIENCE)[0] == b"alive\n"
    finally:
        started[0].end()


STARTS = """
import sys, time
from pathlib import Path
from openrlhf_shear.rewards.jail import Limits, find_jail
process = find_jail().start(Path(sys.argv[1]), Limits(), packages=True)
print(process.stdout.readline().decode(), flush=True)
print(process.communicate()[0].decode(), process.returncode)
"""


def test_a_jail_dies_with_its_process(jail: Jail, tmp_path: Path):
    script = tmp_path / "sleeps_until_its_parent_dies.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    process = subprocess.Popen([sys.executable, "-c", STARTS, str(script)], stdout=subprocess.PIPE)
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
        process.end()
        process.end()
        assert process.returncode is not None
        if delay is None:
            assert process.pid not in {int(group) for _, _, group, *_ in stats().values()}, "no zombie either"
    assert descriptors() == before
    assert gone(script.name)


def processes_of(name: str) -> list[int]:
    def command(pid: int) -> bytes:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            return b""

    return [pid for pid in stats() if name.encode() in command(pid) and pid != os.getpid()]


def gone(name: str) -> bool:
    """Whether all processes with a name in their command line end; the kernel takes a moment."""
    return wait_until(lambda: not processes_of(name))


def test_a_python_installed_below_tmp_is_there_too(jail: Jail, tmp_path: Path):
    """The jail's private /tmp must not hide it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    script = tmp_path / "says_where.py"
    script.write_text("import os, sys\nprint(sys.prefix)\nopen(sys.prefix + '/x', 'w')\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [tmp_path / "venv" / "bin" / "python", "-c", STARTS, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(tmp_path / "venv"), "1"], done.stderr  # there, and read-only


def test_what_starts_in_a_jail_is_killed_with_it():
    """Bubblewrap's child is in its group, waits until both are ready, and holds its pipes."""
    words = ["sh", "-c", "sleep 3600 & echo started; wait"]
    with JailProcess(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"started\n"
        process.kill()
        assert select.select([process.stdout], [], [], PATIENCE)[0] and process.stdout.read() == b""
