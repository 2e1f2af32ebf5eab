"""Files that are there whole or as they were before, at whatever moment the process ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes `path` once the block is done; after an error nothing has changed."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """A text file that appears as `path` once the block is done and it is on the disk."""
    with beside(path) as partial, partial.open("w", encoding="utf-8") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text)
