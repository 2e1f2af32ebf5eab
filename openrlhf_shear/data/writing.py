"""Atomic writing: whenever the process ends, a file is either complete or as it was before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` at the end of the block; after an error, `path` is unchanged."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """Yield a text file that becomes `path` at the end of the block, after a flush to the disk."""
    with beside(path) as partial, partial.open("w", encoding="utf-8") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text)
