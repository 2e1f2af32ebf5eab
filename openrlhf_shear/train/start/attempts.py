"""Supervisor of a run: starts it as a child process, and restarts it from its last checkpoint when it fails.

`--train.max_restarts` is the number of restarts. The console reads the child's events and other output.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

from openrlhf_shear.train.sampling.engine_process import die_with_parent
from openrlhf_shear.train.screen import story
from openrlhf_shear.train.screen.console import Console
from openrlhf_shear.train.screen.events import READER, Note
from openrlhf_shear.train.screen.outcome import ENGINE_GAP, NOT_FINITE, REFUSED, REWARDS, STOPPED
from openrlhf_shear.train.start.signals import NUMBERS

ATTEMPT = "OPENRLHF_SHEAR_ATTEMPT"  # environment variable that `supervise` sets: the number of the attempt
# Exit codes without a retry: another attempt would end the same way, or is not wanted.
_FINAL = (0, REFUSED, REWARDS, NOT_FINITE, ENGINE_GAP, STOPPED)
PAUSE_SECONDS = 5.0  # for Ray to notice that the driver is gone
_NODE_SECONDS = 600.0  # for a dead node to come back


def supervise(command: Sequence[str], max_restarts: int, console: Console | None = None) -> int:
    """Run a command until it succeeds, or has failed `max_restarts` + 1 times; return its last exit code.

    Later attempts get `--ckpt.load_enable`. Signals (`NUMBERS`) are passed on to the attempt, which is then the last.
    Between two attempts they end the pause. Then, and while an attempt's Python starts, the exit code is 75. When this
    process dies, the kernel kills the attempt.

    Args:
        console: shows a summary of the output; None shows all output.
    """
    signals: list[int] = []  # that came
    running: list[subprocess.Popen] = []

    def pass_on(number: int, _) -> None:
        signals.append(number)
        for process in running:
            process.send_signal(number)

    def tell(message: str) -> None:
        story.say(message) if console is None else console.show(Note(message))

    for number in NUMBERS:
        signal.signal(number, pass_on)
    for attempt in range(max_restarts + 1):
        code = _run(command, attempt, console, running, signals, tell)
        if code in _FINAL or signals or attempt == max_restarts:
            return code
        left, checkpoint = max_restarts - attempt - 1, console and console.checkpoint
        place = "its last checkpoint" if checkpoint is None else f"the checkpoint of step {checkpoint}"
        more = f"{left} more {'try' if left == 1 else 'tries'} after that"
        tell(f"the run ended with exit code {code}; it starts again from {place} ({more})")
        end = time.monotonic() + PAUSE_SECONDS
        while not signals and time.monotonic() < end:  # a handler does not end `time.sleep`
            time.sleep(0.05)
        if signals:
            name = signal.Signals(signals[0]).name
            tell(f"{name}: the run does not start again; --ckpt.load_enable resumes from its last checkpoint")
            return STOPPED
    raise AssertionError("unreachable")


def _run(
    command: Sequence[str],
    attempt: int,
    console: Console | None,
    running: list[subprocess.Popen],
    signals: Sequence[int],
    tell: Callable[[str], None],
) -> int:
    """Run an attempt to its end; return its exit code as a shell reports it."""
    words = [*command, *(["--ckpt.load_enable"] if attempt else [])]
    environment, pipes = os.environ | {ATTEMPT: str(attempt)}, {}
    if console:
        environment[READER], pipes = "1", {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(words, env=environment, preexec_fn=die_with_parent, text=True, errors="replace", **pipes)
    running[:] = [process]
    if signals:  # one came during the start
        process.send_signal(signals[-1])
    if console:
        console.follow(process.stdout)
    code = process.wait()
    code = code if code >= 0 else 128 - code
    # Until it has handlers (`signals`), a signal ends an attempt as it ends any Python.
    if code - 128 in signals or (signals and console and code not in _FINAL and not console.has_told()):
        tell(f"{signal.Signals(signals[0]).name}: the run ended while it started; nothing new is trained")
        code = STOPPED
    if console:
        console.close(code)
    return code


def patience(first: float) -> float:
    """Return how many seconds this attempt waits for GPUs: `first`, and at least 600 from the second attempt on."""
    return max(first, _NODE_SECONDS) if int(os.environ.get(ATTEMPT, "0")) else first
