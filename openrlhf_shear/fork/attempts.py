"""`--train.max_restarts`: a run in a process of its own, started again from its last checkpoint when it fails."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from openrlhf_shear.fork.engine_process import die_with_parent
from openrlhf_shear.fork.outcome import NOT_FINITE, REFUSED, REWARDS, STOPPED

ATTEMPT = "OPENRLHF_SHEAR_ATTEMPT"  # in the environment of an attempt: its number
_FINAL = (0, REFUSED, REWARDS, NOT_FINITE, STOPPED)  # another attempt would end the same way, or is not wanted
_PAUSE_SECONDS = 5.0  # for Ray to notice that the driver is gone
_NODE_SECONDS = 600.0  # for a node that died to come back


def supervise(command: Sequence[str], max_restarts: int) -> int:
    """Run a command until it ends well, or has failed once more than `max_restarts`; its last exit code.

    Later attempts get `--ckpt.load_enable`. SIGTERM and SIGINT are passed on, and end it. Killed with this process.
    """
    asked: list[int] = []
    for attempt in range(max_restarts + 1):
        words = [*command, *(["--ckpt.load_enable"] if attempt else [])]
        environment = os.environ | {ATTEMPT: str(attempt)}
        process = subprocess.Popen(words, env=environment, preexec_fn=die_with_parent)

        def pass_on(number: int, _, process: subprocess.Popen = process) -> None:
            asked.append(number)
            process.send_signal(number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, pass_on)
        code = process.wait()
        code = code if code >= 0 else 128 - code
        if code in _FINAL or asked or attempt == max_restarts:
            return code
        left = max_restarts - attempt - 1
        print(
            f"[openrlhf_shear] the run ended with exit code {code}; it starts again from its last checkpoint "
            f"({left} more {'try' if left == 1 else 'tries'} after that)",
            file=sys.stderr,
            flush=True,
        )
        time.sleep(_PAUSE_SECONDS)
    raise AssertionError("unreachable")


def patience(asked: float) -> float:
    """Seconds that this attempt waits for GPUs which the cluster does not have: as asked, a later one longer."""
    return max(asked, _NODE_SECONDS) if int(os.environ.get(ATTEMPT, "0")) else asked
