"""Supervisor of a run: starts it as a child process, and restarts it from its last checkpoint when it fails.

`--train.max_restarts` is the number of restarts. The console reads what the child prints.
"""

import os
import signal
import subprocess
import time
from collections.abc import Sequence

from openrlhf_shear.train.sampling.engine_process import die_with_parent
from openrlhf_shear.train.screen.console import Console
from openrlhf_shear.train.screen.outcome import ENGINE_GAP, NOT_FINITE, REFUSED, REWARDS, STOPPED
from openrlhf_shear.train.screen.story import say

ATTEMPT = "OPENRLHF_SHEAR_ATTEMPT"  # environment variable: the number of the attempt
# Exit codes without a retry: another attempt would end the same way, or is not wanted.
_FINAL = (0, REFUSED, REWARDS, NOT_FINITE, ENGINE_GAP, STOPPED)
PAUSE_SECONDS = 5.0  # for Ray to notice that the driver is gone
_NODE_SECONDS = 600.0  # for a dead node to come back


def supervise(command: Sequence[str], max_restarts: int, console: Console | None = None) -> int:
    """Run a command until it succeeds, or has failed `max_restarts` + 1 times; return its last exit code.

    Later attempts get `--ckpt.load_enable`. SIGTERM and SIGINT are passed on to the attempt, which is then the last.
    Between two attempts they end the pause, and the exit code is 75. When this process dies, the kernel kills the
    attempt.

    Args:
        console: shows a summary of the output; None shows all output.
    """
    asked: list[int] = []
    running: list[subprocess.Popen] = []

    def pass_on(number: int, _) -> None:
        asked.append(number)
        for process in running:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    for attempt in range(max_restarts + 1):
        code = _run(command, attempt, console, running, asked)
        if code in _FINAL or asked or attempt == max_restarts:
            return code
        left = max_restarts - attempt - 1
        say(
            f"the run ended with exit code {code}; it starts again from its last checkpoint "
            f"({left} more {'try' if left == 1 else 'tries'} after that)"
        )
        _pause(asked)
        if asked:
            name = signal.Signals(asked[0]).name
            say(f"{name}: the run does not start again; --ckpt.load_enable resumes from its last checkpoint")
            return STOPPED
    raise AssertionError("unreachable")


def _run(command, attempt: int, console: Console | None, running: list, asked: list) -> int:
    """Run an attempt to its end; return its exit code as a shell reports it."""
    printed = {} if console is None else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    words = [*command, *(["--ckpt.load_enable"] if attempt else [])]
    environment = os.environ | {ATTEMPT: str(attempt)}
    process = subprocess.Popen(
        words, env=environment, preexec_fn=die_with_parent, text=True, errors="replace", **printed
    )
    running[:] = [process]
    if asked:  # a signal came during the start
        process.send_signal(asked[-1])
    if console:
        console.follow(process.stdout)
    code = process.wait()
    code = code if code >= 0 else 128 - code
    if console:
        console.ended(code)
    return code


def _pause(asked: Sequence[int]) -> None:
    """Wait before the next attempt, or until a signal comes. Polls, because a handler does not end `time.sleep`."""
    end = time.monotonic() + PAUSE_SECONDS
    while not asked and time.monotonic() < end:
        time.sleep(0.05)


def is_first() -> bool:
    """Return whether the user started this process, rather than `supervise`."""
    return ATTEMPT not in os.environ


def patience(asked: float) -> float:
    """Return how many seconds this attempt waits for GPUs: `asked` for the first, at least 600 for later ones."""
    return max(asked, _NODE_SECONDS) if int(os.environ.get(ATTEMPT, "0")) else asked
