"""TensorBoard and W&B, which only watch: what fails there costs curves, and never the run."""

import os
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Protocol

from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.config.secrets import hidden

logger = init_logger(__name__)
_BUSY = 0.05  # share of the time that tries may take which fail
_CLOSING_SECONDS = 120.0
_PROBE_BYTES = 65_536


class Tracker(Protocol):
    """OpenRLHF's `TensorboardLogger` or `WandbLogger`."""

    def log_train(self, global_step: int, logs_dict: dict) -> None: ...

    def log_eval(self, global_step: int, logs_dict: dict) -> None: ...

    def close(self) -> None: ...


class Curves:
    """A tracker that may fail: the first error is logged, later calls try again with a new tracker."""

    def __init__(self, name: str, make: Callable[[], Tracker]):
        """Makes the first tracker, too.

        Args:
            name: of the service, for messages.
            make: a new tracker, which goes on with the curves of those before.
        """
        self._name, self._make = name, make
        self._tracker: Tracker | None = None
        self._failed = False
        self._again = 0.0  # when the next try is due
        self._try("at the start", lambda tracker: None)

    def log_train(self, global_step: int, logs_dict: dict) -> None:
        self._try(f"at step {global_step}", lambda tracker: tracker.log_train(global_step, logs_dict))

    def log_eval(self, global_step: int, logs_dict: dict) -> None:
        self._try(f"at step {global_step}", lambda tracker: tracker.log_eval(global_step, logs_dict))

    def flush(self, global_step: int) -> None:
        """To the disk, of TensorBoard's."""
        if self._tracker is not None:
            self._try(f"at step {global_step}", lambda tracker: tracker.writer.flush())

    def renew(self) -> None:
        """Close the tracker and make another."""
        self.close()
        self._try("at the start", lambda tracker: None)

    def close(self) -> None:
        """Close the tracker; what it still has to send may take two minutes."""
        tracker, self._tracker = self._tracker, None
        if tracker is None:
            return
        failure: list[Exception] = []

        def close() -> None:
            try:
                tracker.close()
            except Exception as error:
                failure.append(error)

        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        closing.join(_CLOSING_SECONDS)
        if closing.is_alive():
            self._fail(f"not closed after {_CLOSING_SECONDS:g} s: the end of its curves may be missing")
        elif failure:
            self._fail(f"{_said(failure[0])}; the end of its curves may be missing")

    def _try(self, when: str, call: Callable[[Tracker], object]) -> None:
        started = time.monotonic()
        if self._tracker is None and started < self._again:
            return
        try:
            if self._tracker is None:
                self._tracker = self._make()
            call(self._tracker)
        except Exception as error:  # of any kind: three libraries and a network are below
            self._fail(f"{_said(error)} {when}; training goes on without its curves until that works again")
            self.close()
            now = time.monotonic()
            self._again = now + (now - started) * (1 / _BUSY - 1)
            return
        if self._failed:
            logger.warning(f"{self._name} works again {when}; steps before are missing in its curves")
        self._failed = False

    def _fail(self, why: str) -> None:
        """Say so, once until it works again."""
        if not self._failed:
            logger.error(f"{self._name} failed: {why}")
        self._failed = True


def check_room(folder: str) -> None:
    """Write to a nameless file in `folder`: TensorBoard's writer leaves an empty file behind when it fails.

    Raises:
        OSError: of a disk that is full or has no inodes, or of a folder that cannot be written to.
    """
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(bytes(_PROBE_BYTES))


def _said(error: Exception) -> str:
    """An exception in a line."""
    lines = hidden(str(error)).strip().splitlines()
    return f"{type(error).__name__}{f': {lines[0][:200]}' if lines else ''}"
