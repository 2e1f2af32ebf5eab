"""What a run's screen shows of its events and of other output, and what its log has."""

import io
import os
import pty
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from cases import table

from openrlhf_shear.train.screen.console import Console
from openrlhf_shear.train.screen.events import Activity, Checkpoint, End, Note, Record, Step, line_of
from openrlhf_shear.train.start import attempts

WARNING = Record("ERROR", "11-22 22:33:17", "trainer.py:278", "no update: no rollout has a reward\nin two lines")
OUTPUT = [
    "INFO 11-22 22:33:17 config.py:12] vLLM has many lines of this kind\n",
    "\x1b[36m(ShearTrainer pid=12, ip=10.0.0.1)\x1b[0m " + line_of(Note("device: cpu")),
    line_of(Activity("sampling and grading, prompts", 3, 16)),
    line_of(Activity("sampling and grading, prompts", 4, 16)),
    "(RolloutActor pid=7) WARNING 11-22 22:33:17 [cpu.py:12] vLLM's own warning\n",
    "(PolicyActor pid=8) WARNING 11-22 22:33:17 strategy.py:96] checkpoint passed over: global_step8 is cut\n",
    line_of(WARNING),
    "half a line" + line_of(Record("INFO", "11-22 22:33:17", "trainer.py:9", "for the log")),
    "\x1f another program's\n",
]
SHOWN = table("train", "SHOWN")
LOGGED = table("train", "LOGGED")
ENDS = {
    "well": ("", 0, []),
    "on purpose": (line_of(End("rewards are lost", 3)), 3, ["the run ended: rewards are lost"]),
    "error": (line_of(End("ValueError: no")), 1, ["the run ended with exit code 1: ValueError: no"]),
    "killed": ("", 137, ["the run ended with exit code 137"]),
}


def script(output: str, code: int) -> list[str]:
    """The command of an attempt."""
    return [sys.executable, "-c", f"import os; os.write(2, {output.encode()!r}); os._exit({code})"]


@pytest.mark.parametrize("end", ENDS)
def test_the_screen_has_what_is_for_people_and_the_log_everything(tmp_path, monkeypatch, capsys, end):
    monkeypatch.setenv("OPENRLHF_SHEAR_REWARD_TOKEN", "a secret token")
    output, code, reasons = ENDS[end]
    log = tmp_path / "logs" / "train.log"
    console = Console(log, ["train", "--reward.remote_url", "http://a secret token@host"])
    assert attempts.supervise(script("".join(OUTPUT) + output, code), 0, console) == code
    assert capsys.readouterr().out.splitlines() == [*SHOWN, *reasons, f"log       {log}"]
    command, *lines = log.read_text().splitlines()
    logged = ["[openrlhf_shear] the run ended: rewards are lost"] if end == "on purpose" else []
    assert "secret" not in command and [line for line in lines if line] == LOGGED + logged


RETRIED = """
import os
from openrlhf_shear.train.screen.events import Checkpoint
from openrlhf_shear.train.screen.story import emit, ending

if os.environ["OPENRLHF_SHEAR_ATTEMPT"] == "0":
    emit(Checkpoint(8))
    with ending():
        raise ValueError("the first attempt's")
os._exit(9)
"""


def test_an_attempt_is_explained_by_its_own_exception(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(attempts, "PAUSE_SECONDS", 0.0)
    console = Console(tmp_path / "log", ["x"])
    assert attempts.supervise([sys.executable, "-c", RETRIED], 1, console) == 9
    shown = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("log ")]
    assert shown == [
        "the run ended with exit code 1: ValueError: the first attempt's",
        "the run ended with exit code 1; it starts again from the checkpoint of step 8 (0 more tries after that)",
        "the run ended with exit code 9",
    ]
    assert "Traceback" in (tmp_path / "log").read_text()


def watch(run: str, *before: str) -> list[str]:
    """The command of a process that supervises `run` with a console."""
    lines = [
        "import sys",
        "from pathlib import Path",
        "from openrlhf_shear.line import frame",
        "from openrlhf_shear.train.screen.console import Console",
        "from openrlhf_shear.train.start import attempts",
        "console = Console(Path('log'), ['x'])",
        *before,
        "@frame.until_the_reader_leaves()",
        "def main():",
        f"    sys.exit(attempts.supervise([sys.executable, '-c', {textwrap.dedent(run)!r}], 0, console))",
        "main()",
    ]
    return [sys.executable, "-c", "\n".join(lines)]


NOTES = "import time\nfrom openrlhf_shear.train.screen.story import say\n"


def test_a_screen_and_a_disk_that_are_gone_do_not_stop_the_run(tmp_path):
    """More lines than a pipe holds, to a closed pipe and to /dev/full."""
    read, write = os.pipe()
    os.close(read)
    run = NOTES + "for i in range(5000): say(f'{i} of many words')\nopen('ended', 'w')"
    full = "console._file = open('/dev/full', 'a', buffering=1)"
    subprocess.run(watch(run, full), stdout=write, stderr=subprocess.DEVNULL, cwd=tmp_path, timeout=100)
    os.close(write)
    assert (tmp_path / "ended").exists()


def test_a_reader_that_leaves_a_run_is_told_once_and_the_run_ends_as_it_would(tmp_path):
    """As in `shear-train ... | head -3`, with a command in place of the training."""
    run = NOTES + "for i in range(300): say(str(i)), time.sleep(0.002)"
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    with subprocess.Popen(watch(run), **piped) as process:
        shown = [process.stdout.readline() for _ in range(3)]
        process.stdout.close()
        errors = process.stderr.read()
    assert shown == ["0\n", "1\n", "2\n"] and process.returncode == 0
    assert errors == "[Info] the reader of this output has left; the run goes on, and log has its output\n"
    assert "299" in (tmp_path / "log").read_text()


def test_a_terminal_shows_what_is_being_done(tmp_path):
    """Below the lines that stay there is one that changes: not in the log, and gone at the end."""
    run = "from openrlhf_shear.train.screen.story import doing\ndoing('sampling, prompts', 3, 16)\n" + NOTES
    run += "time.sleep(1); say('1/2  reward')"
    terminal, screen = pty.openpty()
    there = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(watch(run), stdout=screen, stderr=screen, env=there, cwd=tmp_path):
        os.close(screen)
        shown = b""
        with suppress(OSError):  # Linux says so at the end
            while some := os.read(terminal, 4096):
                shown += some
    os.close(terminal)
    text = shown.decode()
    assert "sampling, prompts" in text and "3/16" in text and "1/2  reward" in text
    assert text.rindex("log       ") > text.rindex("sampling")
    assert "sampling" not in (tmp_path / "log").read_text()


def test_stages_are_shown_up_to_the_first_step(tmp_path, capsys):
    console = Console(Path(tmp_path / "log"), ["x"])
    doing = line_of(Activity("update"))
    console.follow([doing, line_of(Checkpoint(3)), line_of(Step(1, 2, {}, 1.0, 1.0)), doing.replace("update", "again")])
    console.close()
    assert capsys.readouterr().out.splitlines()[:-1] == ["update ...", "1/2  1.0 s  ETA 0:01"]
    assert console.checkpoint == 3


def test_a_slow_start_says_what_it_waits_for(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("openrlhf_shear.train.screen.console._SILENT_SECONDS", 0.05)
    told = threading.Event()

    def lines():
        yield line_of(Activity("loading the models"))
        assert told.wait(60)
        yield line_of(Step(1, 2, {}, 1.0, 1.0))

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            if " s\n" in super().getvalue() + text:
                told.set()
            return super().write(text)

    console = Console(tmp_path / "log", ["x"], screen := Screen())
    console.follow(lines())
    console.close()
    shown = screen.getvalue().splitlines()
    assert shown[:2] == ["loading the models ...", "loading the models ... 0 s"] and "1/2" in shown[-2]
