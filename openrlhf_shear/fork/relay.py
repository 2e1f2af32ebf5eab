"""What the trainer prints, on its way to the driver's screen: the driver fetches it, call by call.

Ray forwards a worker's output too: by a log monitor on every node and through the GCS. If either stands still, nothing
of the run would be seen to its end. Calls of an actor go from process to process.
"""

import os
import sys
import threading
from collections import deque

import ray
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.fork import story

_MOST = 10_000  # texts that wait for the driver
_PATIENCE_SECONDS = 1.0  # of a call, for the next text
_RETRY_SECONDS = 1.0
_CLOSING_SECONDS = 10.0


class Relay:
    """Output stream, written to in whole lines, that keeps them until they are fetched."""

    def __init__(self):
        self._texts: deque[str] = deque(maxlen=_MOST)
        self._written = 0
        self._more = threading.Condition()
        self._process = os.getpid()

    def write(self, text: str) -> None:
        if os.getpid() != self._process:  # a data loader's, forked: nobody fetches from there
            sys.stdout.write(text)
            return
        with self._more:
            self._texts.append(text)
            self._written += 1
            self._more.notify_all()

    def flush(self) -> None:
        """Nothing: what is written can be fetched at once."""

    def fetch(self, seen: int, patience: float) -> tuple[int, list[str]]:
        """How many texts have been written so far, and those after the first `seen`, which are dropped.

        Args:
            patience: seconds to wait for the next one.
        """
        with self._more:
            self._more.wait_for(lambda: self._written > seen, patience)
            while len(self._texts) > self._written - seen:
                self._texts.popleft()
            return self._written, list(self._texts)


_relay: Relay | None = None


def fetch(seen: int, patience: float) -> tuple[int, list[str]]:
    """As `Relay.fetch`, of this process: from the first call on, its story and its log lines go there alone."""
    global _relay
    if _relay is None:
        _relay = Relay()
        story.divert(_relay)
        init_logger(__name__).handlers[0].setStream(_relay)  # all of OpenRLHF's loggers share it
    return _relay.fetch(seen, patience)


class Followed:
    """Actor class whose actor is followed: what its method `printed` (see `fetch`) returns is printed here."""

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
        """Print what the actor has printed so far, and follow it no longer."""
        self._over.set()
        if self._thread:
            self._thread.join(_CLOSING_SECONDS)

    def _follow(self, actor: ray.actor.ActorHandle) -> None:
        seen, over = 0, False
        while not over and ray.is_initialized():
            over = self._over.is_set()  # before the last call: it fetches everything up to `close`
            try:
                seen, texts = ray.get(actor.printed.remote(seen, 0.0 if over else _PATIENCE_SECONDS))
            except ray.exceptions.ActorDiedError:
                return
            except ray.exceptions.RayError:  # such as a connection that broke: what was not seen is still there
                self._over.wait(_RETRY_SECONDS)
                continue
            for text in texts:
                story.put(text)
