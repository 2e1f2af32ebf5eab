"""Names of checkpoint folders, and their complete.json, which lists each file with its size and digest.

{"mp_rank_00_model_states.pt": {"bytes": 6512345, "sha256": "9f86d0..."}, ...}
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

BEST = "best"  # upstream's prefix of the best checkpoint's name
HF = "_hf"
COMPLETE = "complete.json"
_NAME = re.compile(rf"(?:{BEST}_)?global_step(\d+)")


class Listed(NamedTuple):
    """Entry of complete.json: the size and digest of a file."""

    size: int
    digest: str  # SHA-256


def step_of(name: str) -> int:
    """Return the step in a checkpoint's name; -1 for other names.

    >>> step_of("best_global_step12"), step_of("global_step3.partial"), step_of("global_step4_hf")
    (12, -1, 4)
    """
    match = _NAME.fullmatch(name.removesuffix(HF))
    return int(match[1]) if match else -1


def shares(folders: Iterable[Path], ranks: int) -> list[list[Path]]:
    """Share the files of checkpoints out over ranks, the largest first, because digests of all take minutes."""
    files = [(file.stat().st_size, file) for folder in folders for file in files_in(folder) if file.name != COMPLETE]
    ordered = [file for _, file in sorted(files, reverse=True)]
    return [ordered[rank::ranks] for rank in range(ranks)]


def digests(files: Iterable[Path]) -> dict[Path, str]:
    """Return the SHA-256 of each file."""
    found = {}
    for file in files:
        with file.open("rb") as opened:
            found[file] = hashlib.file_digest(opened, "sha256").hexdigest()
    return found


def changed(files: Iterable[Path]) -> list[str]:
    """Return a line for each file of complete checkpoints whose bytes differ from the recorded digest."""
    lines = []
    for file in files:
        folder = next(folder for folder in file.parents if step_of(folder.name) >= 0)
        try:
            listed = listing(folder).get(str(file.relative_to(folder)))
            if listed and digests([file])[file] != listed.digest:
                lines.append(f"{file} does not have the bytes that were written (SHA-256)")
        except (OSError, ValueError) as error:
            lines.append(f"{file} cannot be read ({error})")
    return lines


def listing(path: Path) -> dict[str, Listed]:
    """Read the entries of a checkpoint's complete.json, by file name.

    Raises:
        ValueError: it cannot be read, or lists no files.
    """
    try:
        read = json.loads((path / COMPLETE).read_text(encoding="utf-8"))
        listed = {name: Listed(entry["bytes"], entry["sha256"]) for name, entry in read.items()}
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise ValueError(f"{COMPLETE} cannot be read") from None
    if not listed:
        raise ValueError(f"{COMPLETE} lists no files")
    return listed


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def write(path: Path, text: str) -> None:
    """Write a file and flush it to the disk, past the operating system's cache."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
