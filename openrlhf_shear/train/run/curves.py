"""Wrapper of the TensorBoard and W&B loggers: their failures cost curves, and never end the run."""

import os
import tempfile
import threading
import time
from collections.abc import Callable

from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.config.secrets import hidden

logger = init_logger(__name__)
BUSY = 0.05  # largest share of the time that failing retries may take
CLOSING_SECONDS = 120.0
_PROBE_BYTES = 65_536


class Curves:
    """Tracker of OpenRLHF that survives errors: the first is logged, and later calls retry with a new tracker."""

    def __init__(self, name: str, make: Callable[[], object]):
        """Make the first tracker.

        Args:
            name: the service's name, for messages.
            make: returns a new tracker that continues the existing curves.
        """
        self._name, self._make = name, make
        self._tracker: object | None = None
        self._failed = False
        self._again = 0.0  # time of the next retry
        self._try("at the start", lambda tracker: None)

    def log_train(self, global_step: int, logs_dict: dict) -> None:
        self._try(f"at step {global_step}", lambda tracker: tracker.log_train(global_step, logs_dict))

    def log_eval(self, global_step: int, logs_dict: dict) -> None:
        self._try(f"at step {global_step}", lambda tracker: tracker.log_eval(global_step, logs_dict))

    def flush(self, global_step: int) -> None:
        """Flush TensorBoard's file to the disk."""
        if self._tracker is not None:
            self._try(f"at step {global_step}", lambda tracker: tracker.writer.flush())

    def renew(self) -> None:
        """Close the tracker and make a new one."""
        self.close()
        self._try("at the start", lambda tracker: None)

    def close(self) -> None:
        """Close the tracker; it gets two minutes to send the remaining data."""
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
        closing.join(CLOSING_SECONDS)
        if closing.is_alive():
            self._fail(f"not closed after {CLOSING_SECONDS:g} s: the end of its curves may be missing")
        elif failure:
            self._fail(f"{_in_a_line(failure[0])}; the end of its curves may be missing")

    def _try(self, when: str, call: Callable[[object], object]) -> None:
        started = time.monotonic()
        if self._tracker is None and started < self._again:
            return
        try:
            if self._tracker is None:
                self._tracker = self._make()
            call(self._tracker)
        except Exception as error:  # of any kind: from three libraries and a network
            self._fail(f"{_in_a_line(error)} {when}; training goes on without its curves until that works again")
            self.close()
            now = time.monotonic()
            self._again = now + (now - started) * (1 / BUSY - 1)
            return
        if self._failed:
            logger.warning(f"{self._name} works again {when}; steps before are missing in its curves")
        self._failed = False

    def _fail(self, why: str) -> None:
        """Log a failure, once until the tracker works again."""
        if not self._failed:
            logger.error(f"{self._name} failed: {why}")
        self._failed = True


def check_room(folder: str) -> None:
    """Test the disk with a nameless file in `folder`, because a failing TensorBoard writer leaves an empty file behind.

    Raises:
        OSError: the disk is full or has no inodes, or the folder cannot be written to.
    """
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(bytes(_PROBE_BYTES))


def _in_a_line(error: Exception) -> str:
    """Format an exception in a line."""
    lines = hidden(str(error)).strip().splitlines()
    return f"{type(error).__name__}{f': {lines[0][:200]}' if lines else ''}"
