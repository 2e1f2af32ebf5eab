"""Set-up of a run's Ray workers.

Ray writes a worker's output to files in its temporary folder. If that disk is full, printing would end the run.
"""

import errno
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import TextIO

from openrlhf_shear.preflight.resources import ray_folder
from openrlhf_shear.train.nodes.loopback import keep_stores_there

WORKER_SETUP_HOOK = "openrlhf_shear.train.nodes.worker.set_up"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Lossy:
    """Output stream that drops what a full disk refuses."""

    dropped, warned = False, False  # in this process, by any such stream; whether `lost_output` has said so

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def _drop(self, error: OSError) -> None:
        if error.errno not in _FULL:
            raise error
        Lossy.dropped = True


def set_up() -> None:
    """Prepare a worker on a machine with GPUs."""
    keep_stores_there()
    allow_lost_output()


def allow_lost_output() -> None:
    """Drop what a full disk refuses of this process's output, until the process ends."""
    redirect_stdout(Lossy(sys.stdout)).__enter__()
    redirect_stderr(Lossy(sys.stderr)).__enter__()


def lost_output() -> str:
    """Return a warning if this process has dropped output and has not said so yet; else ""."""
    lost, Lossy.warned = Lossy.dropped and not Lossy.warned, Lossy.warned or Lossy.dropped
    warning = f"the disk of Ray's temporary folder is full ({', '.join(ray_folder())}): its processes' output is lost"
    return f"{warning}; make room there" if lost else ""
