"""Rows of a data set, one dict each; plain files without `datasets`, which would give every column one type."""

import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TextIO

KINDS = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")


class DataError(ValueError):
    """A data set that cannot be used; the message says why."""


def looks_local(name: str) -> bool:
    """Whether `name` is meant as a path on this machine rather than as a hub id."""
    return name.startswith(("/", ".", "~")) or os.path.isdir(name)


def tilde(name: str) -> str:
    """A hint for paths whose `~` nobody will expand."""
    return " (the shell did not expand ~)" if name.startswith("~") else ""


def one_line(error: Exception) -> str:
    """What a library or the network raised, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@dataclass(frozen=True)
class Rows:
    """A data set being read: `columns` of its first row, and how many rows there are where that is known."""

    rows: Iterator[dict]
    columns: tuple[str, ...]
    total: int | None


def open_rows(name: str, split: str = "train", configs: Sequence[str] = ()) -> Rows:
    """The rows of `name`, in order.

    Args:
        name: a .jsonl, .json (a list, or one object a line), either of them gzipped, or a .parquet file; a folder or a
            hub id, which `datasets` reads.
        split: of a folder or hub id; a file is one split.
        configs: of a folder or hub id, read one after the other.

    Raises DataError: it is not there, cannot be read, or has no row. A broken line is met, and raised, on the way.
    """
    if os.path.isfile(name):
        if not name.endswith(KINDS):
            raise DataError(f"{name} is not of a known kind; use one of {', '.join(KINDS)}")
        rows, total = _parquet(name) if name.endswith(".parquet") else (_json(name), None)
    elif not os.path.isdir(name) and (looks_local(name) or name.endswith(KINDS)):
        raise DataError(f"{name} does not exist{tilde(name)}; use the path of a file or folder, or a hub id")
    else:
        rows, total = _loaded(name, split, configs)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{name} has no row; use a data set that has")
    return Rows(chain([first], rows), tuple(first), total)


def _parquet(path: str) -> tuple[Iterator[dict], int]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return (row for batch in file.iter_batches(batch_size=256) for row in batch.to_pylist()), file.metadata.num_rows


def _json(path: str) -> Iterator[dict]:
    def parsed(where: str, text: str) -> object:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: {where} is not JSON: {error}; use a list, or one object a line") from error

    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8-sig") as file:
            for at, row in json_values(file, parsed):
                if not isinstance(row, dict):
                    got = type(row).__name__
                    raise DataError(f"{path}: {at} must be an object: got {got}; use {{...}} for each row")
                yield row
    except (OSError, EOFError, UnicodeDecodeError) as error:  # a broken gzip file is one of the first two
        raise DataError(f"{path} cannot be read: {error}") from error


def json_values(file: TextIO, parse: Callable[[str, str], Any]) -> Iterator[tuple[str, Any]]:
    """(where, value) of every row of a list, or of every line that is not blank; `parse` makes it of (where, text)."""
    lines = ((f"line {number}", line) for number, line in enumerate(file, 1) if line.strip())
    first = next(lines, None)
    if first and first[1].lstrip().startswith("["):
        rows = parse("the list", first[1] + file.read())
        yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))
    elif first:
        yield from ((where, parse(where, line)) for where, line in chain([first], lines))


def _loaded(name: str, split: str, configs: Sequence[str]) -> tuple[Iterator[dict], int]:
    import datasets

    try:
        parts = [datasets.load_dataset(name, config, split=split) for config in configs or (None,)]
    except Exception as error:  # whatever the hub, the network and the loaders raise, in one line
        raise DataError(
            f"split {split!r} of {name} can be read neither here nor on the hub ({one_line(error)}); "
            "use a file that exists, or check the id, the split, --config and the connection"
        ) from error
    return chain.from_iterable(parts), sum(len(part) for part in parts)
