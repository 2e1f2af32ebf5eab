"""Screen of a run: shows its events, and writes all output of its processes to RUN/logs/train.log."""

import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO

from openrlhf_shear.config.secrets import hidden
from openrlhf_shear.train.screen.events import READER, Activity, Checkpoint, End, Event, Record, Step, split

# Formats of libraries, whose output has no events: of Ray, of OpenRLHF's loggers in workers, and of tqdm.
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_ACTOR = re.compile(r"^\((\w+) pid=\d+(?:, ip=[^)]*)?\)\s*")  # prefix of a worker's output
_RECORD = re.compile(r"^(WARNING|ERROR) (\d\d-\d\d [\d:]+) (\w+\.py:\d+)\] (.*)")  # vLLM's has [file.py:12]
_BAR = re.compile(r"^([^:|]+): +\d+%\|.*?\| (\d+)/(\d+) \[")
_CLOSING_SECONDS = 10.0
_SILENT_SECONDS = 10.0


class Console:
    """Reader of a run's output: logs all of it, shows a summary, and in a terminal a live status line.

    Attributes:
        checkpoint: step of the run's last checkpoint, as far as known.
    """

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
        self.checkpoint: int | None = None
        self._end: End | None = None  # of this attempt
        self._has_told = False  # this attempt, of anything
        self._reader: threading.Thread | None = None
        self._screen, self._bars = screen, bars
        self._terminal = self._live = None
        if (screen or sys.stdout).isatty():
            from rich.console import Console as Terminal

            self._terminal = Terminal(highlight=False, file=screen)
            self._live = self._terminal.status("starting")  # a line below those that stay
        # Without a terminal activities are shown until the first step: the last one, and since when.
        self._activity, self._since, self._printed_at = "", 0.0, 0.0
        self._has_stepped = False
        self._has_lost_reader = False

    def follow(self, lines: Iterable[str]) -> None:
        """Read an attempt's lines in a thread, until there are no more."""
        self._end, self._has_told = None, False
        if self._live:
            self._live.start()
        self._reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._reader.start()
        if not self._live:
            threading.Thread(target=self._remind, args=(self._reader,), daemon=True).start()

    def has_told(self) -> bool:
        """Return whether the attempt, which has ended, told of anything."""
        self._reader.join(_CLOSING_SECONDS)
        return self._has_told

    def close(self, code: int = 0) -> None:
        """Finish an attempt: wait for its last lines; if it failed without a reason, show its exit code; name the log.

        Args:
            code: the attempt's exit code.
        """
        self._reader.join(_CLOSING_SECONDS)
        if self._live:
            self._live.stop()
        if code and (self._end is None or self._end.code is None):
            cause = f": {self._end.why}" if self._end else ""
            self._print(f"the run ended with exit code {code}{cause}", "red")
        self._print(f"log       {self.log}")

    def show(self, event: Event) -> None:
        """Show an event's lines on the screen."""
        label, style = "", ""
        if isinstance(event, Record):
            label, style = f"{event.level.lower()}: ", "yellow" if event.level == "WARNING" else "red"
        elif isinstance(event, End):
            style = "red"
        for line in event.lines():
            self._print(label + line, style)

    def _read(self, lines: Iterable[str]) -> None:
        for raw in lines:
            before, event = split(raw)
            line = _ACTOR.sub("", _COLOR.sub("", before.rstrip("\n")))
            if self._bars and (bar := _BAR.match(line)):
                self._show_activity(Activity(bar[1], int(bar[2]), int(bar[3])))
            elif line or event is None:  # of another program
                self._write(before if before.endswith("\n") else before + "\n")
                if record := _RECORD.match(line):
                    self.show(Record(*record.groups()))
            if event is not None:
                self._take(event)

    def _take(self, event: Event) -> None:
        """Log an event, and show it."""
        self._has_told = True
        match event:
            case Activity():
                self._show_activity(event)
                return
            case End():
                self._end = event
            case Checkpoint(step):
                self.checkpoint = step
            case Step():
                self._has_stepped = True
        self._write(event.printed())
        if not (isinstance(event, Record) and event.level == "INFO"):
            self.show(event)

    def _write(self, lines: str) -> None:
        with suppress(OSError):  # a full disk: reading goes on, because the run blocks without a reader
            self._file.write(lines)

    def _show_activity(self, activity: Activity) -> None:
        """Show what the run is doing: in a terminal always, elsewhere a line for each start-up stage."""
        if self._live:
            self._live.update(*activity.lines())
        elif not self._has_stepped and activity.words != self._activity:
            self._activity, self._since = activity.words, time.monotonic()
            self._print(f"{activity.words} ...")

    def _remind(self, reader: threading.Thread) -> None:
        """Until the first step, after each 10 silent seconds, show what the run waits for, and for how long."""
        while reader.is_alive() and not self._has_stepped:
            now = time.monotonic()
            if self._activity and now - self._printed_at >= _SILENT_SECONDS:
                self._print(f"{self._activity} ... {now - self._since:.0f} s")
            reader.join(_SILENT_SECONDS / 10)

    def _print(self, line: str, style: str = "") -> None:
        self._printed_at = time.monotonic()
        try:
            if self._terminal:
                self._terminal.print(line, style=style, markup=False)
            else:
                print(line, file=self._screen, flush=True)
        except BrokenPipeError:  # `| head -3`
            if not self._has_lost_reader:
                self._has_lost_reader = True
                note = f"the reader of this output has left; the run goes on, and {self.log} has its output"
                with suppress(OSError):
                    print(f"[Info] {note}", file=sys.stderr)
        except OSError:  # the terminal was closed
            pass


@contextmanager
def quiet(log: Path, verbose: bool = False) -> Iterator[None]:
    """Write to `log` what this process and its children print meanwhile; `verbose` shows it instead.

    Ray is stopped at the end of the block if it was started in it, so that its last words go to the log too.

    Raises:
        OSError: the log cannot be written.
    """
    if verbose:
        yield
        return
    import ray  # late: other users of the console need none

    has_ray = ray.is_initialized()
    screen = os.fdopen(os.dup(1), "w", buffering=1, errors="replace")
    console = Console(log, sys.argv, screen, bars=True)
    read, write = os.pipe()
    before = [os.dup(number) for number in (1, 2)]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for number in (1, 2):
        os.dup2(write, number)
    os.close(write)
    os.environ.update({READER: "1"})
    talk = os.fdopen(os.dup(1), "w", buffering=1, errors="replace")
    console.follow(os.fdopen(read, errors="replace"))
    try:
        with redirect_stdout(talk), redirect_stderr(talk):
            try:
                yield
            finally:
                if not has_ray and ray.is_initialized():
                    ray.shutdown()
    finally:
        talk.close()
        os.environ.pop(READER)
        for number, stream in zip((1, 2), before, strict=True):
            os.dup2(stream, number)
            os.close(stream)
        console.close()
        screen.close()
