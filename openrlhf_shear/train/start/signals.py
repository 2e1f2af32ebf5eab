"""Handlers of signals that end a run with a checkpoint within `--train.grace_seconds`."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from openrlhf_shear.train.screen.events import End
from openrlhf_shear.train.screen.outcome import STOPPED
from openrlhf_shear.train.screen.story import emit, say

TRAINER = "openrlhf_shear trainer"  # the actor's name, in the namespace of the job
SAME_SECONDS = 3.0
_SHUTDOWN_SECONDS = 20.0
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # Slurm's --signal=USR1 comes before its time limit


@contextmanager
def stopping(grace_seconds: float) -> Iterator[None]:
    """Handle signals while the main thread runs the trainer.

    The first signal asks the trainer to stop, or ends this process if there is no trainer yet. A second signal ends
    this process, and so does the end of the grace period; the last checkpoint then remains. A repeat within
    `SAME_SECONDS` counts as the first: a terminal, Slurm, or `ray job stop` beside `--train.max_restarts` may signal
    several processes of a run.

    A thread reads the signals from a pipe (`signal.set_wakeup_fd`). Python would call a handler only once the main
    thread has left C code. A start of Ray can stay there for minutes.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_follow, args=(read, grace_seconds), daemon=True).start()
    before = {number: signal.signal(number, lambda *_: None) for number in NUMBERS}
    try:
        yield
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
    threading.Timer(_SHUTDOWN_SECONDS, os._exit, (STOPPED,)).start()
    try:
        shutdown()
    finally:
        os._exit(STOPPED)


def _put(handlers: dict) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
