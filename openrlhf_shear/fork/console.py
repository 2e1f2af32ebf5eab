"""The screen of a run: what `story` says of it. Everything that its processes print is in RUN/logs/train.log."""

import re
import shlex
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from openrlhf_shear.config.secrets import hidden
from openrlhf_shear.fork.story import MARK, NOW

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_ACTOR = re.compile(r"^\((\w+) pid=\d+(?:, ip=[^)]*)?\)\s*")  # Ray's, before what comes from its workers
# Of OpenRLHF's loggers and ours; vLLM's are `WARNING 07-10 15:12:12 [file.py:12] text`.
_PROBLEM = re.compile(r"^(WARNING|ERROR) \d\d-\d\d [\d:]+ \w+\.py:\d+\] (.*)")
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit)\b.*")
_LAST = 400  # lines in which the cause of an end is looked for
_CLOSING_SECONDS = 10.0


class Console:
    """Reads what a run prints. In a terminal there is a live line of what it is doing, too."""

    def __init__(self, log: Path, command: Sequence[str]):
        """
        Args:
            log: a file that is gone on with.
            command: of the run, for the log's first line.

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
        self._live = _Live() if sys.stdout.isatty() else None

    def follow(self, lines: Iterable[str]) -> None:
        """Read them in a thread, until there are no more."""
        if self._live:
            self._live.start()
        self._reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._reader.start()

    def ended(self, code: int) -> None:
        """An attempt has ended: wait for its last lines; of one that failed without a word, say the cause."""
        self._reader.join(_CLOSING_SECONDS)
        if self._live:
            self._live.stop()
        if code and not self._told:
            said = [line for line in self._recent if _EXCEPTION.match(line)]
            self._show(f"the run ended with exit code {code}" + (f": {said[-1]}" if said else ""))
        self._show(f"log       {self.log}")
        self._told = False

    def _read(self, lines: Iterable[str]) -> None:
        for raw in lines:
            line = _ACTOR.sub("", _COLOR.sub("", raw.rstrip("\n")))
            if line.startswith(NOW):
                if self._live:
                    self._live.show(line.removeprefix(NOW).strip())
                continue
            with suppress(OSError):  # of a full disk: the run waits for whoever reads, so reading goes on
                self._file.write(raw if raw.endswith("\n") else raw + "\n")
            self._recent.append(line)
            problem = _PROBLEM.match(line)
            if line.startswith(MARK):
                self._told |= line.startswith(f"{MARK} the run ended")
                self._show(line.removeprefix(MARK).strip())
            elif problem:
                self._show(f"{problem[1].lower()}: {problem[2]}")

    def _show(self, text: str) -> None:
        with suppress(OSError):  # of a screen that is gone
            if self._live:
                self._live.print(text)
            else:
                print(text, flush=True)


class _Live:
    """Lines that stay, above one that tells what is being done."""

    def __init__(self):
        from rich.console import Console as Terminal
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        parts = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._terminal = Terminal(highlight=False)
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
