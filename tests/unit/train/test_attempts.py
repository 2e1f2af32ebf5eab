"""A run that fails is started again from its last checkpoint, one that ended on purpose is not; signals get through."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from cases import cases
from processes import stats, wait_until

from openrlhf_shear.train.start import attempts

RUN = """
import os, pathlib, signal, sys
kept = pathlib.Path(sys.argv[1])
kept.write_text(kept.read_text() + f"{os.environ['OPENRLHF_SHEAR_ATTEMPT']} {' '.join(sys.argv[3:])}\\n")
code = sys.argv[2].split(",")[int(os.environ["OPENRLHF_SHEAR_ATTEMPT"])]
if code == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(code))
"""


@pytest.mark.parametrize(*cases("train", "test_what_failed_starts_again"))
def test_what_failed_starts_again(tmp_path, monkeypatch, codes, restarts, last, tries):
    monkeypatch.setattr(attempts, "PAUSE_SECONDS", 0.0)
    handlers = [signal.getsignal(number) for number in attempts.NUMBERS]
    kept = tmp_path / "kept"
    kept.write_text("")
    try:
        assert attempts.supervise([sys.executable, "-c", RUN, str(kept), codes, "--x"], restarts) == last
    finally:
        for number, handler in zip(attempts.NUMBERS, handlers, strict=True):
            signal.signal(number, handler)
    lines = kept.read_text().splitlines()
    assert lines == [f"{i} --x{' --ckpt.load_enable' if i else ''}" for i in range(tries)]


SUPERVISE = """
import sys
from openrlhf_shear.train.start import attempts
sys.exit(attempts.supervise([sys.executable, "-c", sys.argv[1], sys.argv[2]], 3))
"""
WAITING = """
import pathlib, signal, sys, time
def stop(*_):
    sys.exit(75)
signal.signal(signal.SIGTERM, stop), signal.signal(signal.SIGUSR1, stop)
pathlib.Path(sys.argv[1]).write_text("ready")
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL])
def test_a_signal_reaches_the_run(tmp_path, number):
    """It is passed on, and its exit code comes back; with a supervisor that is killed the run ends too."""
    ready = tmp_path / "ready"
    process = subprocess.Popen([sys.executable, "-c", SUPERVISE, WAITING, str(ready)])
    assert wait_until(ready.exists)
    (child,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    process.send_signal(number)
    assert process.wait(60) == (-9 if number == signal.SIGKILL else 75)
    assert wait_until(lambda: stats().get(child, ["Z"])[0] == "Z"), "a zombie is another's to reap"


PAUSED = """
import os, signal, sys, threading
from openrlhf_shear.train.start import attempts
emit = attempts.story.emit
def interrupted(event):
    emit(event)
    if "it starts again" in event.text:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
attempts.story.emit, attempts.PAUSE_SECONDS = interrupted, 60.0
sys.exit(attempts.supervise([sys.executable, "-c", "print('an attempt', flush=True); raise SystemExit(1)"], 3))
"""


def test_a_signal_between_two_attempts_ends_the_run():
    done = subprocess.run([sys.executable, "-c", PAUSED], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 75 and done.stdout.count("an attempt") == 1
    assert "SIGTERM: the run does not start again" in done.stdout


STARTED = """
import os, signal, subprocess, sys
from openrlhf_shear.train.start import attempts
class Popen(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        if os.environ.get("SECOND"):
            os.kill(os.getpid(), signal.SIGTERM)
        super().__init__(*args, **kwargs)
        os.environ["SECOND"] = "1"
attempts.subprocess.Popen, attempts.PAUSE_SECONDS = Popen, 0.0
waits = "import os, time; os.environ['OPENRLHF_SHEAR_ATTEMPT'] == '1' and time.sleep(60); raise SystemExit(1)"
sys.exit(attempts.supervise([sys.executable, "-c", waits], 3))
"""


def test_a_signal_reaches_an_attempt_that_starts():
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 75 and "SIGTERM: the run ended while it started" in done.stdout, done.stderr


SIGNALS = """
import ctypes, os, signal, sys, threading, time, types
from openrlhf_shear.train.start import attempts

ASKED, GONE = threading.Event(), threading.Event()

class Trainer:
    class ask_to_stop:
        remote = staticmethod(lambda why: (print("asked by", why, flush=True), ASKED.set()))

def get_actor(name):
    assert MODE != "no Ray", "this starts one"
    if MODE in ("no trainer", "Ray gone"):
        raise ValueError(name)
    return Trainer

MODE = sys.argv[1]
sys.modules["ray"] = types.SimpleNamespace(
    is_initialized=lambda: MODE not in ("no Ray", "in C"), get_actor=get_actor, get=lambda ref, timeout: None,
    exceptions=types.SimpleNamespace(RayError=OSError), shutdown=lambda: (print("shut down", flush=True), shut()),
)

def shut():
    GONE.set()
    if MODE == "Ray gone":
        time.sleep(1)  # the main thread has failed meanwhile

attempts.SAME_SECONDS = 0.3
with attempts.stopping(0.3 if MODE == "over" else 60.0):
    if MODE == "in C":  # a wait that a signal does not interrupt, as Ray's: the main thread runs no handler
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        lock = ctypes.create_string_buffer(64)
        ctypes.CDLL(None).pthread_mutex_lock(lock), ctypes.CDLL(None).pthread_mutex_lock(lock)
    os.kill(os.getpid(), signal.SIGTERM)
    if MODE == "in time":
        os.kill(os.getpid(), signal.SIGTERM)  # Slurm, or a terminal, signals a family: this is no second one
    if MODE in ("in time", "twice"):
        ASKED.wait(30)
        time.sleep(0.5)  # longer than a signal counts as the same
    if MODE == "twice":
        os.kill(os.getpid(), signal.SIGINT)
    if MODE == "in time":
        sys.exit(75)
    if MODE == "Ray gone":  # beneath a call of the main thread
        GONE.wait(30)
        raise AttributeError("gcs_client")
    time.sleep(60)
"""


@pytest.mark.parametrize(*cases("train", "test_a_signal_ends_the_run_within_its_grace"))
def test_a_signal_ends_the_run_within_its_grace(mode, said):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SIGNALS), mode], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 75 and said in done.stdout
    assert ("asked by SIGTERM" in done.stdout) == (mode in ("in time", "twice", "over"))
    assert ("shut down" in done.stdout) == (mode not in ("in time", "twice"))


def test_a_signal_after_the_training_changes_nothing():
    script = "import os, signal\nfrom openrlhf_shear.train.start import attempts\nwith attempts.stopping(60.0): pass"
    words = [sys.executable, "-c", script + "\nos.kill(os.getpid(), signal.SIGTERM)"]
    assert subprocess.run(words, timeout=50, check=False).returncode == 0


STARTING = """
import os, signal, sys
from openrlhf_shear.train.start import attempts

def start():  # as `ray.init` does
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
    if sys.argv[1] == "within":
        os.kill(os.getpid(), signal.SIGTERM)

signal.signal(signal.SIGTERM, lambda *_: print("ours", flush=True))
with attempts.own_handlers():
    start()
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("when", "code", "said"), [("within", 75, "the run ended: a signal came while Ray started"), ("after", 0, "ours")]
)
def test_a_handler_of_rays_does_not_stay(when, code, said):
    words = [sys.executable, "-c", STARTING, when]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)
    assert said in done.stdout and done.returncode == code
