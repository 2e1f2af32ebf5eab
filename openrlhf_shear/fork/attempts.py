"""A run in a process of its own, which the console reads; with `--train.max_restarts` it is started again from its last
checkpoint when it fails.
"""

import os
import signal
import subprocess
import time
from collections.abc import Sequence

from openrlhf_shear.fork.console import Console
from openrlhf_shear.fork.engine_process import die_with_parent
from openrlhf_shear.fork.outcome import ENGINE_GAP, NOT_FINITE, REFUSED, REWARDS, STOPPED
from openrlhf_shear.fork.story import say

ATTEMPT = "OPENRLHF_SHEAR_ATTEMPT"  # in the environment of an attempt: its number
# Another attempt would end the same way, or is not wanted.
_FINAL = (0, REFUSED, REWARDS, NOT_FINITE, ENGINE_GAP, STOPPED)
_PAUSE_SECONDS = 5.0  # for Ray to notice that the driver is gone
_NODE_SECONDS = 600.0  # for a node that died to come back


def supervise(command: Sequence[str], max_restarts: int, console: Console | None = None) -> int:
    """Run a command until it ends well, or has failed once more than `max_restarts`; its last exit code.

    Later attempts get `--ckpt.load_enable`. SIGTERM and SIGINT are passed on, and end it. Killed with this process.

    Args:
        console: shows what it prints, in place of all of it.
    """
    asked: list[int] = []
    printed = {} if console is None else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    for attempt in range(max_restarts + 1):
        words = [*command, *(["--ckpt.load_enable"] if attempt else [])]
        environment = os.environ | {ATTEMPT: str(attempt)}
        process = subprocess.Popen(
            words, env=environment, preexec_fn=die_with_parent, text=True, errors="replace", **printed
        )
        if console:
            console.follow(process.stdout)

        def pass_on(number: int, _, process: subprocess.Popen = process) -> None:
            asked.append(number)
            process.send_signal(number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, pass_on)
        code = process.wait()
        code = code if code >= 0 else 128 - code
        if console:
            console.ended(code)
        if code in _FINAL or asked or attempt == max_restarts:
            return code
        left = max_restarts - attempt - 1
        say(
            f"the run ended with exit code {code}; it starts again from its last checkpoint "
            f"({left} more {'try' if left == 1 else 'tries'} after that)"
        )
        time.sleep(_PAUSE_SECONDS)
    raise AssertionError("unreachable")


def is_first() -> bool:
    """Whether this process was started by whoever runs the command, and not by `supervise`."""
    return ATTEMPT not in os.environ


def patience(asked: float) -> float:
    """Seconds that this attempt waits for GPUs which the cluster does not have: as asked, a later one longer."""
    return max(asked, _NODE_SECONDS) if int(os.environ.get(ATTEMPT, "0")) else asked
