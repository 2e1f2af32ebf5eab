"""Screen of a run: shows the lines of `story`, and writes all output of its processes to RUN/logs/train.log."""

import re
import shlex
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from openrlhf_shear.config.secrets import hidden
from openrlhf_shear.rewards.limits import likely_limit
from openrlhf_shear.train.screen.story import MARK, NOW

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_ACTOR = re.compile(r"^\((\w+) pid=\d+(?:, ip=[^)]*)?\)\s*")  # Ray's prefix of a worker's output
# Format of OpenRLHF's loggers and ours; vLLM's is `WARNING 07-10 15:12:12 [file.py:12] text`.
_PROBLEM = re.compile(r"^(WARNING|ERROR) \d\d-\d\d [\d:]+ \w+\.py:\d+\] (.*)")
_BAR = re.compile(r"^([^:|]+): +\d+%\|.*?\| (\d+)/(\d+) \[")  # of tqdm
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit)\b.*")
_STEP = re.compile(rf"{re.escape(MARK)} *\d+/\d+  ")  # a line of `story.Story.step`
_COUNTED = re.compile(r" \d+/\d+$")
_LAST = 400  # last lines that are searched for the cause of a failure
_CLOSING_SECONDS = 10.0


class Console:
    """Reader of a run's output: logs all of it, shows a summary, and in a terminal a live status line."""

    def __init__(self, log: Path, command: Sequence[str], screen: TextIO | None = None, bars: bool = False):
        """
        Args:
            log: the log file, opened for append.
            command: the run's command, written to the log first.
            screen: where to show lines; None for stdout.
            bars: whether tqdm's progress bars are activities too, in place of lines of the log.

        Raises:
            OSError: the log cannot be written.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log, self._file = log, log.open("a", buffering=1, errors="replace")
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        self._file.write(f"# {started} {hidden(shlex.join(command))}\n")
        self._recent: deque[str] = deque(maxlen=_LAST)
        self._told = False  # how the run ended
        self._reader: threading.Thread | None = None
        self._screen, self._bars = screen, bars
        self._live = _Live(screen) if (screen or sys.stdout).isatty() else None
        self._doing = ""  # without a terminal: the last activity shown; activities are shown until the first step
        self._stepped = False
        self._left = False  # whether the reader of the screen has left

    def follow(self, lines: Iterable[str]) -> None:
        """Read the lines in a thread, until there are no more."""
        if self._live:
            self._live.start()
        self._reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._reader.start()

    def ended(self, code: int) -> None:
        """Finish an attempt: wait for its last lines; if it failed without a message, show the likely cause."""
        self._reader.join(_CLOSING_SECONDS)
        if self._live:
            self._live.stop()
        if code and not self._told:
            said = [line for line in self._recent if _EXCEPTION.match(line)]
            cause = f": {said[-1]}{likely_limit(said[-1])}" if said else ""
            self._show(f"the run ended with exit code {code}{cause}")
        self._show(f"log       {self.log}")
        self._told = False

    def left(self) -> None:
        """Finish without an exit code: wait for the last lines, and name the log."""
        self._reader.join(_CLOSING_SECONDS)
        if self._live:
            self._live.stop()
        self._show(f"log       {self.log}")

    def _read(self, lines: Iterable[str]) -> None:
        for raw in lines:
            line = _ACTOR.sub("", _COLOR.sub("", raw.rstrip("\n")))
            if self._bars and (bar := _BAR.match(line)):
                self._show_activity(f"{bar[1]} {bar[2]}/{bar[3]}")
                continue
            if line.startswith(NOW):
                self._show_activity(line.removeprefix(NOW).strip())
                continue
            with suppress(OSError):  # a full disk: reading goes on, because the run blocks without a reader
                self._file.write(raw if raw.endswith("\n") else raw + "\n")
            self._recent.append(line)
            problem = _PROBLEM.match(line)
            if line.startswith(MARK):
                self._told |= line.startswith(f"{MARK} the run ended")
                self._stepped |= bool(_STEP.match(line))
                self._show(line.removeprefix(MARK).strip())
            elif problem:
                self._show(f"{problem[1].lower()}: {problem[2]}")

    def _show_activity(self, doing: str) -> None:
        """Show what the run is doing: in a terminal always, elsewhere a line for each start-up stage."""
        if self._live:
            self._live.show(doing)
            return
        words = _COUNTED.sub("", doing)
        if not self._stepped and words != self._doing:
            self._doing = words
            self._show(f"{words} ...")

    def _show(self, text: str) -> None:
        try:
            if self._live:
                self._live.print(text)
            else:
                print(text, file=self._screen, flush=True)
        except BrokenPipeError:  # `| head -3`
            self._tell_once(f"the reader of this output has left; the run goes on, and {self.log} has its output")
        except OSError:  # the terminal was closed
            pass

    def _tell_once(self, text: str) -> None:
        if not self._left:
            self._left = True
            with suppress(OSError):
                print(f"[Info] {text}", file=sys.stderr)


class _Live:
    """Terminal display: permanent lines above a live status line."""

    def __init__(self, screen: TextIO | None = None):
        from rich.console import Console as Terminal
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        parts = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._terminal = Terminal(highlight=False, file=screen)
        self._progress = Progress(*parts, TimeElapsedColumn(), console=self._terminal, transient=True)
        self._task = self._progress.add_task("starting", total=None)
        self._words = ""

    def start(self) -> None:
        self._progress.start()

    def show(self, doing: str) -> None:
        counted = re.fullmatch(r"(.*) (\d+)/(\d+)", doing)
        words, done, total = (counted[1], int(counted[2]), int(counted[3])) if counted else (doing, 0, None)
        if words != self._words:
            self._words = words
            self._progress.reset(self._task, description=words, total=total)
        self._progress.update(self._task, completed=done, total=total)

    def print(self, text: str) -> None:
        style = "red" if text.startswith(("error", "the run ended")) else "yellow" if text.startswith("warning") else ""
        self._terminal.print(text, style=style, markup=False)

    def stop(self) -> None:
        self._progress.stop()
