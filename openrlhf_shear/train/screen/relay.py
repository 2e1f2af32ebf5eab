"""Relay of the trainer's events to the driver's screen: the driver fetches them by actor calls.

Ray forwards a worker's output too, by a log monitor on every node and through the GCS. If either hangs, the screen
would stay empty until the run ends. Actor calls go directly from process to process.
"""

import logging
import os
import threading
import time
from collections import deque
from functools import cache

import ray
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.train.screen import story
from openrlhf_shear.train.screen.events import Event, Record

MOST = 10_000  # events that wait for the driver
_PATIENCE_SECONDS = 1.0  # how long a call waits for the next event
RETRY_SECONDS = 1.0
_CLOSING_SECONDS = 10.0


class Relay:
    """Receiver that holds a process's events until they are fetched."""

    def __init__(self):
        self._events: deque[Event] = deque(maxlen=MOST)
        self._count = 0  # events so far
        self._more = threading.Condition()
        self._process = os.getpid()

    def put(self, event: Event) -> None:
        if os.getpid() != self._process:  # a forked data loader: nobody fetches from it
            story.put(event)
            return
        with self._more:
            self._events.append(event)
            self._count += 1
            self._more.notify_all()

    def take(self, record: logging.LogRecord) -> bool:
        """Put a logger's record, and keep it from its handler: this is a filter."""
        moment = time.strftime("%m-%d %H:%M:%S", time.localtime(record.created))
        self.put(Record(record.levelname, moment, f"{record.filename}:{record.lineno}", record.getMessage()))
        return False

    def fetch(self, seen: int, patience: float) -> tuple[int, list[Event]]:
        """Return the number of events so far, and those after the first `seen`; drop the first `seen`.

        Args:
            seen: the number of events that the caller has.
            patience: seconds to wait for the next event.
        """
        with self._more:
            self._more.wait_for(lambda: self._count > seen, patience)
            while len(self._events) > self._count - seen:
                self._events.popleft()
            return self._count, list(self._events)


@cache
def diverted() -> Relay:
    """Return this process's relay; the first call diverts the process's events and log records to it."""
    relay = Relay()
    story.divert(relay.put)
    init_logger(__name__).handlers[0].addFilter(relay.take)  # OpenRLHF's loggers share the handler
    return relay


class Followed:
    """Actor class whose actor's events are put here; a thread fetches them from the method `printed`."""

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
        """Put the actor's remaining events, and stop following it."""
        self._over.set()
        if self._thread:
            self._thread.join(_CLOSING_SECONDS)

    def _follow(self, actor: ray.actor.ActorHandle) -> None:
        seen, over = 0, False
        while not over and ray.is_initialized():
            over = self._over.is_set()  # read before the last call, so that it fetches everything up to `close`
            try:
                seen, events = ray.get(actor.printed.remote(seen, 0.0 if over else _PATIENCE_SECONDS))
            except ray.exceptions.ActorDiedError:
                return
            except ray.exceptions.RayError:  # such as a broken connection: unseen events still wait
                self._over.wait(RETRY_SECONDS)
                continue
            for event in events:
                story.put(event)
