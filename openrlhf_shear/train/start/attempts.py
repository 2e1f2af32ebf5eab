"""Attempts of a run: `supervise` restarts one that fails, and `stopping` ends one by a signal, with a checkpoint.

`--train.max_restarts` is the number of restarts, `--train.grace_seconds` the time for the checkpoint. An attempt is a
child process; the console reads its events and other output.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from openrlhf_shear.train.nodes.worker import die_with_parent
from openrlhf_shear.train.screen import story
from openrlhf_shear.train.screen.console import Console
from openrlhf_shear.train.screen.events import READER, End, Note
from openrlhf_shear.train.screen.outcome import ENGINE_GAP, NOT_FINITE, REFUSED, REWARDS, STOPPED
from openrlhf_shear.train.screen.story import emit, say

ATTEMPT = "OPENRLHF_SHEAR_ATTEMPT"  # environment variable that `supervise` sets: the number of the attempt
# Exit codes without a retry: another attempt would end the same way, or is not wanted.
_FINAL = (0, REFUSED, REWARDS, NOT_FINITE, ENGINE_GAP, STOPPED)
PAUSE_SECONDS = 5.0  # for Ray to notice that the driver is gone
_NODE_SECONDS = 600.0  # for a dead node to come back
TRAINER = "openrlhf_shear trainer"  # the actor's name, in the namespace of the job
SAME_SECONDS = 3.0
_SHUTDOWN_SECONDS = 20.0
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # Slurm's --signal=USR1 comes before its time limit
_ending = threading.Event()  # a thread shuts Ray down and ends this process


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

    def run(attempt: int) -> int:
        """Run an attempt to its end; return its exit code as a shell reports it."""
        words = [*command, *(["--ckpt.load_enable"] if attempt else [])]
        environment, pipes = os.environ | {ATTEMPT: str(attempt)}, {}
        if console:
            environment[READER], pipes = "1", {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(
            words, env=environment, preexec_fn=die_with_parent, text=True, errors="replace", **pipes
        )
        running[:] = [process]
        if signals:  # one came during the start
            process.send_signal(signals[-1])
        if console:
            console.follow(process.stdout)
        code = process.wait()
        code = code if code >= 0 else 128 - code
        # Until it has handlers (`stopping`), a signal ends an attempt as it ends any Python.
        if code - 128 in signals or (signals and console and code not in _FINAL and not console.has_told()):
            tell(f"{signal.Signals(signals[0]).name}: the run ended while it started; nothing new is trained")
            code = STOPPED
        if console:
            console.close(code)
        return code

    for number in NUMBERS:
        signal.signal(number, pass_on)
    for attempt in range(max_restarts + 1):
        code = run(attempt)
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


def patience(first: float) -> float:
    """Return how many seconds this attempt waits for GPUs: `first`, and at least 600 from the second attempt on."""
    return max(first, _NODE_SECONDS) if int(os.environ.get(ATTEMPT, "0")) else first


@contextmanager
def stopping(grace_seconds: float) -> Iterator[None]:
    """Handle signals while the main thread runs the trainer.

    The first signal asks the trainer to stop, or ends this process if there is no trainer yet. A second signal ends
    this process, and so does the end of the grace period; the last checkpoint then remains. A repeat within
    `SAME_SECONDS` counts as the first: a terminal, Slurm, or `ray job stop` beside `--train.max_restarts` may signal
    several processes of a run.

    A thread reads the signals from a pipe (`signal.set_wakeup_fd`): Python handles none while Ray starts in C code.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_follow, args=(read, grace_seconds), daemon=True).start()
    before = {number: signal.signal(number, lambda *_: None) for number in NUMBERS}
    try:
        yield
        before = dict.fromkeys(NUMBERS, signal.SIG_IGN)  # a complete run has nothing left to stop
    except BaseException:
        if _ending.is_set():  # Ray is gone because of the signal, whose exit code holds
            threading.Event().wait()
        raise
    finally:
        _put(before)
        signal.set_wakeup_fd(wakeup)
        os.close(write)


def _follow(read: int, grace_seconds: float) -> None:
    """Act on the signals whose numbers come through the pipe, until it is closed."""
    first = None
    while byte := os.read(read, 1):
        if byte[0] not in NUMBERS:
            continue
        if first is None:
            first = time.monotonic()
            name = signal.Signals(byte[0]).name
            threading.Thread(target=_ask, args=(name, grace_seconds), daemon=True).start()
        elif time.monotonic() - first >= SAME_SECONDS:
            os._exit(STOPPED)
    os.close(read)


def _ask(name: str, grace_seconds: float) -> None:
    """Ask the trainer to stop; end this process after the grace period, or now if there is no trainer."""
    import ray  # late: handlers are installed before slow imports

    from openrlhf_shear.train.nodes import own_ray

    try:
        if not ray.is_initialized():
            raise ValueError("no trainer")
        trainer = ray.get_actor(TRAINER)
        say(f"{name}: the run ends with a checkpoint within {grace_seconds:g} s; once more ends it now")
        ray.get(trainer.ask_to_stop.remote(name), timeout=grace_seconds)
    except (ValueError, ray.exceptions.RayError):
        say(f"{name}: no trainer is at work, not yet or no longer; there is nothing left to save")
    else:
        threading.Event().wait(grace_seconds)
        say("the grace is over; the run can resume from its last checkpoint (--ckpt.load_enable)")
    _end_after(own_ray.end)


@contextmanager
def own_handlers() -> Iterator[None]:
    """Keep this process's handlers across `ray.init`, which installs a handler with another exit code.

    If Ray's handler received a signal, this process ends here.
    """
    before = {number: signal.getsignal(number) for number in NUMBERS}
    try:
        yield
    except SystemExit:
        from openrlhf_shear.train.nodes import own_ray

        emit(End("a signal came while Ray started; nothing is trained yet", STOPPED))
        _end_after(own_ray.end)
    finally:
        _put(before)


def _end_after(shutdown: Callable[[], None]) -> None:
    """Shut Ray down, then exit; without a shutdown, Ray's processes would live on for a minute.

    A signal that reaches Ray's C++ handler, while Ray starts, sets an alarm that would abort this process in 3 s.
    """
    signal.alarm(0)
    _ending.set()
    threading.Timer(_SHUTDOWN_SECONDS, os._exit, (STOPPED,)).start()
    try:
        shutdown()
    finally:
        os._exit(STOPPED)


def _put(handlers: dict) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
