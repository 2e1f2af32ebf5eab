"""SIGTERM and SIGINT end a run at a good moment, with a checkpoint, within `--train.grace_seconds`."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from openrlhf_shear.fork.outcome import STOPPED

TRAINER = "openrlhf_shear trainer"  # the actor's name, in the namespace of the job
_SAME_SECONDS = 3.0


@contextmanager
def stopping(grace_seconds: float) -> Iterator[None]:
    """While the main thread waits for the trainer. The first signal asks it to stop; a second one ends this process, as
    does the end of the grace: what the last checkpoint holds is kept then. One that comes at once is the first again,
    from whoever signals a whole family: a terminal, Slurm, `ray job stop` beside `--train.max_restarts`.

    Ray puts handlers of its own where it starts, so it must be up.
    """
    asked: list[str] = []
    since = 0.0
    first = threading.Event()

    def handle(number: int, _) -> None:
        nonlocal since
        if asked and time.monotonic() - since < _SAME_SECONDS:
            return
        if asked:
            os._exit(STOPPED)
        since = time.monotonic()
        asked.append(signal.Signals(number).name)
        first.set()

    def ask() -> None:
        first.wait()
        _say(f"{asked[0]}: the run ends with a checkpoint within {grace_seconds:g} s; once more ends it now")
        try:
            ray.get(ray.get_actor(TRAINER).ask_to_stop.remote(asked[0]), timeout=grace_seconds)
        except (ValueError, ray.exceptions.RayError):
            _say("nothing is trained yet; there is nothing to save")
            os._exit(STOPPED)
        threading.Event().wait(grace_seconds)
        _say("the grace is over; the run can go on from its last checkpoint (--ckpt.load_enable)")
        os._exit(STOPPED)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    threading.Thread(target=ask, daemon=True).start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    print(f"[openrlhf_shear] {text}", file=sys.stderr, flush=True)
