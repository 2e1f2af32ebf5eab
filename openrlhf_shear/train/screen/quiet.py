"""The screen of an evaluation or a diagnosis: what engines, Ray and vLLM print goes to a log file.

Warnings, errors and the progress stay on the screen; results are printed after the block.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from openrlhf_shear.train.screen.console import Console
from openrlhf_shear.train.screen.events import READER


@contextmanager
def quiet(log: Path, verbose: bool = False) -> Iterator[None]:
    """Write to `log` what this process and its children print meanwhile; `verbose` shows it instead.

    Ray is stopped at the end of the block if it was started in it, so that its last words go to the log too.

    Raises:
        OSError: the log cannot be written.
    """
    if verbose:
        yield
        return
    screen = os.fdopen(os.dup(1), "w", buffering=1, errors="replace")
    console = Console(log, sys.argv, screen, bars=True)
    read, write = os.pipe()
    before = [os.dup(number) for number in (1, 2)]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for number in (1, 2):
        os.dup2(write, number)
    os.close(write)
    os.environ.update({READER: "1"})
    talk = os.fdopen(os.dup(1), "w", buffering=1, errors="replace")
    console.follow(os.fdopen(read, errors="replace"))
    try:
        with redirect_stdout(talk), redirect_stderr(talk), _own_ray():
            yield
    finally:
        talk.close()
        os.environ.pop(READER)
        for number, stream in zip((1, 2), before, strict=True):
            os.dup2(stream, number)
            os.close(stream)
        console.close()
        screen.close()


@contextmanager
def _own_ray() -> Iterator[None]:
    """Stop Ray at the end, unless it ran before."""
    import ray

    before = ray.is_initialized()
    try:
        yield
    finally:
        if not before and ray.is_initialized():
            ray.shutdown()
