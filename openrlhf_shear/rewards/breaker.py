"""A circuit breaker: calls to something that does not answer fail at once for a while."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

COOL_DOWN, LONGEST = 5.0, 60.0  # the first and the longest [s]


class Ticket(NamedTuple):
    """A breaker's counts when it admitted a call."""

    opened: int
    failures: int


class Breaker:
    """Circuit breaker around something that may be down. Safe for threads and coroutines.

    closed      Every call is admitted. `failures` failures in a row open the breaker. With `together`, failures of
                calls that were admitted together count once: a moment without connections is a single failure.
    open        No call is admitted until the cool-down is over.
    half-open   A single call is admitted, the trial. An answer closes the breaker.
                A failure opens it again for twice as long, up to a limit.

        ticket = breaker.admit()
        if ticket is None: ...  # fail at once
        try: ...
        finally: breaker.settle(ticket, answered)

    A call admitted before the breaker opened may still close it by an answer. Its failure is ignored.
    """

    def __init__(self, failures: int, clock: Callable[[], float] = time.monotonic, together: bool = False) -> None:
        self._most_failures, self._together = failures, together
        self._clock, self._lock = clock, threading.Lock()
        self._cool_down = COOL_DOWN
        self._failures = 0  # in a row
        self._opened = 0  # openings so far
        self._until: float | None = None  # time of the next trial; None while closed
        self._on_trial = False

    def admit(self) -> Ticket | None:
        """Return a call's ticket, which the caller must settle in every case; None if the call should fail at once."""
        with self._lock:
            if self._until is not None:
                if self._on_trial or self._clock() < self._until:
                    return None
                self._on_trial = True
            return Ticket(self._opened, self._failures)

    def settle(self, ticket: Ticket, answered: bool | None) -> None:
        """Report the outcome of a call; None if the outcome says nothing, e.g. of a cancelled call."""
        with self._lock:
            if answered:
                self._until, self._on_trial = None, False
                self._failures, self._cool_down = 0, COOL_DOWN
            elif ticket.opened != self._opened:
                return
            elif self._until is not None:  # the trial
                self._on_trial = False
                if answered is False:
                    self._cool_down = min(2 * self._cool_down, LONGEST)
                    self._until = self._clock() + self._cool_down
            elif answered is False and not (self._together and ticket.failures < self._failures):
                self._failures += 1
                if self._failures >= self._most_failures:
                    self._opened += 1
                    self._until = self._clock() + self._cool_down

    @property
    def seconds_left(self) -> float:
        """Seconds until a trial may be made; 0 while the breaker is closed, and while a trial is due or under way."""
        with self._lock:
            return 0.0 if self._until is None else max(0.0, self._until - self._clock())
