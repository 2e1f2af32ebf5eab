"""Relay of the trainer's output to the driver's screen: the driver fetches it by actor calls.

Ray forwards a worker's output too, by a log monitor on every node and through the GCS. If either hangs, the screen
would stay empty until the run ends. Actor calls go directly from process to process.
"""

import os
import sys
import threading
from collections import deque
from functools import cache

import ray
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.train.screen import story

MOST = 10_000  # texts kept for the driver
_PATIENCE_SECONDS = 1.0  # how long a call waits for the next text
RETRY_SECONDS = 1.0
_CLOSING_SECONDS = 10.0


class Relay:
    """Output stream that keeps whole lines until they are fetched."""

    def __init__(self):
        self._texts: deque[str] = deque(maxlen=MOST)
        self._written = 0
        self._more = threading.Condition()
        self._process = os.getpid()

    def write(self, text: str) -> None:
        if os.getpid() != self._process:  # a forked data loader: nobody fetches from it
            sys.stdout.write(text)
            return
        with self._more:
            self._texts.append(text)
            self._written += 1
            self._more.notify_all()

    def flush(self) -> None:
        """Do nothing: written text can be fetched at once."""

    def fetch(self, seen: int, patience: float) -> tuple[int, list[str]]:
        """Return the number of texts written so far, and the texts after the first `seen`.

        Drops the first `seen` texts.

        Args:
            seen: the number of texts that the caller has.
            patience: seconds to wait for the next text.
        """
        with self._more:
            self._more.wait_for(lambda: self._written > seen, patience)
            while len(self._texts) > self._written - seen:
                self._texts.popleft()
            return self._written, list(self._texts)


@cache
def diverted() -> Relay:
    """Return this process's relay; the first call diverts the process's story and log lines to it."""
    relay = Relay()
    story.divert(relay)
    init_logger(__name__).handlers[0].setStream(relay)  # OpenRLHF's loggers share the handler
    return relay


def fetch(seen: int, patience: float) -> tuple[int, list[str]]:
    """Fetch this process's texts (`Relay.fetch`), from the first call on."""
    return diverted().fetch(seen, patience)


class Followed:
    """Actor class whose actor's output is printed here; a thread fetches it from the method `printed` (see `fetch`)."""

    def __init__(self, actor_class):
        self._class = actor_class
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def remote(self, *args, **kwargs) -> ray.actor.ActorHandle:
        actor = self._class.remote(*args, **kwargs)
        self._thread = threading.Thread(target=self._follow, args=(actor,), daemon=True)
        self._thread.start()
        return actor

    def close(self) -> None:
        """Print the actor's remaining output, and stop following it."""
        self._over.set()
        if self._thread:
            self._thread.join(_CLOSING_SECONDS)

    def _follow(self, actor: ray.actor.ActorHandle) -> None:
        seen, over = 0, False
        while not over and ray.is_initialized():
            over = self._over.is_set()  # read before the last call, so that it fetches everything up to `close`
            try:
                seen, texts = ray.get(actor.printed.remote(seen, 0.0 if over else _PATIENCE_SECONDS))
            except ray.exceptions.ActorDiedError:
                return
            except ray.exceptions.RayError:  # such as a broken connection: unseen texts are still kept
                self._over.wait(RETRY_SECONDS)
                continue
            for text in texts:
                story.put(text)
