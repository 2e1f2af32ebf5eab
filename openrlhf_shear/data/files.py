"""Rows of a data set, as dicts. Plain files are read without `datasets`, which would give every column one type.

The first bytes of a file tell its kind, so that a wrong file is refused as what it is.
"""

import codecs
import csv
import gzip
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from openrlhf_shear.config.refusal import did_you_mean

POINTER = b"version https://git-lfs"
_BEGIN = 512  # bytes that tell a file's kind
# What a file of another kind begins with, the name of that kind, the ending of its files, and what to do.
_KINDS = (
    (POINTER, "only a pointer of git-lfs", "", "git lfs pull in its folder"),
    (codecs.BOM_UTF32_LE, "text in UTF-32", "", "`iconv -f utf-32 -t utf-8` to convert it"),
    (codecs.BOM_UTF32_BE, "text in UTF-32", "", "`iconv -f utf-32 -t utf-8` to convert it"),
    (codecs.BOM_UTF16_LE, "text in UTF-16", "", "`iconv -f utf-16 -t utf-8` to convert it"),
    (codecs.BOM_UTF16_BE, "text in UTF-16", "", "`iconv -f utf-16 -t utf-8` to convert it"),
    (b"PAR1", "a parquet file", ".parquet", "a name that ends with .parquet"),
    (b"ARROW1", "an Arrow file", ".arrow", "a name that ends with .arrow"),
    (b"\x1f\x8b", "compressed by gzip", ".gz", "a name that ends with .gz, or gunzip"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", ".zst", "zstd -d to unpack it"),
    (b"BZh", "compressed by bzip2", ".bz2", "bunzip2 to unpack it"),
    (b"\xfd7zXZ", "compressed by xz", ".xz", "unxz to unpack it"),
    (b"PK\x03\x04", "a zip archive or an Excel file", ".zip", "unzip, or save the sheet as CSV"),
    (b"SQLite format", "a database of SQLite", ".db", "an export as CSV or JSON lines"),
    (b"%PDF", "a PDF", ".pdf", "a data set of rows"),
    (b"<!doctype", "a page of HTML", ".html", "the address of the file itself, with resolve in place of blob"),
    (b"<html", "a page of HTML", ".html", "the address of the file itself, with resolve in place of blob"),
)
_TO_UTF8 = "`iconv -f latin1 -t utf-8` to convert it, or its encoding in place of latin1"
_FORM = "use a list, or one object a line"
NAME = 255  # bytes of the name of a file or folder
_HEAD = 1000  # rows that are read to know the columns
KINDS = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")


class DataError(ValueError):
    """A data set that cannot be used; the message says why."""


def looks_local(name: str) -> bool:
    """Say whether `name` looks like a path on this machine rather than a hub id."""
    ends = name.startswith(("/", ".", "~")) or name.endswith("/")
    return ends or (name.count("/") > 1 and "://" not in name) or os.path.isdir(name)


def near_path(name: str) -> str:
    """Return a hint for a missing path: an existing path with a similar name, or that no name can be so long.

    A path that exists gets no hint.
    """
    if os.path.exists(name):
        return ""
    if hub := re.fullmatch(r"https?://huggingface\.co/(?:datasets/)?([^/]+/[^/]+)/?.*", name):
        return f" (did you mean {hub[1]}?)"
    folder, last = os.path.split(name.rstrip("/"))
    if len(os.fsencode(last)) > NAME:
        return f" (its name has {len(last)} characters, and the system allows {NAME} bytes)"
    there = os.listdir(folder or ".") if os.path.isdir(folder or ".") else ()
    return did_you_mean(last, there, f" (did you mean {os.path.join(folder, '{}')}?)")


def one_line(error: Exception) -> str:
    """Return the first line of an error's message, else its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def require(path: str) -> None:
    """Raise DataError if a path is no regular file, or its bytes are not what its ending says, or are cut off."""
    if not os.path.isfile(path):
        what = "a folder" if os.path.isdir(path) else "a pipe or a device" if os.path.exists(path) else "not there"
        raise DataError(f"{path} is {what}{' (a link leads to it)' * os.path.islink(path)}; use a file on a disk")
    with open(path, "rb") as file:
        require_text(path, file, packed=path.endswith(".gz"), whole=path.endswith((".parquet", ".arrow")))
    if path.endswith(".parquet"):
        _require_table(path)


def _require_table(path: str) -> None:
    """Raise DataError if a parquet file is cut off or empty, or has two columns of one name."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} is cut off or damaged ({error}); download or copy it again") from error
    names = file.schema_arrow.names
    if again := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{path} has two columns of the name {again[0]!r}; rename one of them")
    if not file.metadata.num_rows:
        raise DataError(f"{path} has no rows; use a data set with at least one row")


def foreign(path: str) -> str:
    """Return why the first bytes of a file are no text; "" if they are."""
    try:
        require(path)
        return ""
    except DataError as error:
        return str(error)


def require_text(path: str, file: BinaryIO, packed: bool = False, whole: bool = False) -> None:
    """Raise DataError if a file's first bytes are no text; leave it at its beginning.

    Args:
        packed, whole: instead of text, the file has the bytes of a packed file, or of a table.
    """
    head = file.read(_BEGIN)
    file.seek(0)
    mine = next((kind for kind in _KINDS if head.lower().startswith(kind[0].lower())), None)
    if mine and not (mine[2] and path.endswith(mine[2]) and (packed or whole)):
        raise DataError(f"{path} is {mine[1]}; use {mine[3]}")
    if packed and mine is None:
        raise DataError(f"{path} is not compressed by gzip, as its name says; use a name without .gz")
    if path.endswith(".parquet") and mine is None:
        what = "no parquet file, as its name says" if head else "empty"
        raise DataError(f"{path} is {what}; download or copy it again, or use the ending of its kind")
    if b"\0" in head and not (packed or whole):
        raise DataError(f"{path} is a binary file; use a file of text in UTF-8")


@dataclass(frozen=True)
class OpenRows:
    """A data set being read."""

    rows: Iterator[dict]
    columns: tuple[str, ...]  # of the first rows; a row of a JSON file can lack some
    total: int | None  # number of rows; None if unknown


def open_rows(name: str, split: str = "train", configs: Sequence[str] = ()) -> OpenRows:
    """Open a data set and return its rows, in order.

    Args:
        name: a .jsonl or .json file (a list, or one object a line), gzipped or not; a .parquet file; or a folder or hub
            id, which `datasets` reads.
        split: of a folder or hub id; a file is one split.
        configs: of a folder or hub id, read one after the other.

    Raises DataError: the data set is missing, cannot be read, or has no row. A broken line raises when it is reached,
    one of the first thousand rows here.
    """
    if os.path.exists(name) and not os.path.isdir(name):
        if not name.endswith(KINDS):
            raise DataError(f"{name} is not of a known kind; use one of {', '.join(KINDS)}")
        rows, total = _parquet(name) if name.endswith(".parquet") else ((row for _, row in json_rows(name)), None)
    elif not os.path.isdir(name) and (looks_local(name) or name.endswith(KINDS)):
        raise DataError(f"{name} does not exist{near_path(name)}; use the path of a file or folder, or a hub id")
    else:
        rows, total = _loaded(name, split, configs)
    head = list(islice(rows, _HEAD))
    if not head:
        raise DataError(f"{name} has no row; use a data set with rows")
    return OpenRows(chain(head, rows), tuple(dict.fromkeys(column for row in head for column in row)), total)


def _parquet(path: str) -> tuple[Iterator[dict], int]:
    require(path)
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path)
    return (row for batch in file.iter_batches(batch_size=256) for row in batch.to_pylist()), file.metadata.num_rows


def json_rows(path: str) -> Iterator[tuple[str, dict]]:
    """Yield (place, row) of a JSON list, or of one object a line.

    Raises DataError: the file cannot be read; the message names the place.
    """
    try:
        with _opened(path) as file:
            for at, row in _json_values(path, file):
                if not isinstance(row, dict):
                    got = type(row).__name__
                    raise DataError(f"{path}: {at} must be an object: got {got}; use {{...}} for each row")
                yield at, row
    except (OSError, EOFError) as error:  # e.g. a broken gzip file
        raise DataError(f"{path} cannot be read: {error}") from error


def csv_rows(path: str) -> Iterator[tuple[str, dict]]:
    """Yield (place, row) of a CSV file with a header.

    Every value is a text, as in the file: "007", "1e5", "NaN", "2024-01-01"; an empty value is None.

    Raises DataError: the file cannot be read; the message names the place.
    """
    begin = 1  # line of a row
    csv.field_size_limit(sys.maxsize)  # all tests of a program are in one field
    try:
        with _opened(path) as file:
            lines = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), strict=True)
            names = next(lines, [])
            if again := [name for name in names if names.count(name) > 1]:
                raise DataError(f"{path} has two columns of the name {again[0]!r}; rename one of them")
            if len(names) == 1 and (other := next((mark for mark in ";\t|" if mark in names[0]), None)):
                raise DataError(f"{path} separates its columns by {other!r}; use commas")
            begin = lines.line_num + 1
            for values in lines:
                begin = lines.line_num + 1
                if values and len(values) != len(names):
                    raise DataError(
                        f"{path} cannot be read: line {lines.line_num} has {len(values)} fields, and the header "
                        f"{len(names)}; use a comma only between fields, and quotes around a field with one"
                    )
                if values:
                    yield f"line {lines.line_num}", dict(zip(names, (value or None for value in values), strict=True))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error.reason}); use {_TO_UTF8}") from error
    except csv.Error as error:
        problem = f"{path} cannot be read from line {begin} on: {error}"
        raise DataError(f'{problem}; use "" for a quote in quotes, and close each quote') from error
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _opened(path: str) -> BinaryIO:
    if "://" in path:
        import fsspec

        return fsspec.open(path, "rb", compression="infer").open()
    require(path)
    file = (gzip.open if path.endswith(".gz") else open)(path, "rb")
    require_text(path, file)
    return file


def _json_values(path: str, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    texts = (line.removeprefix(codecs.BOM_UTF8) for line in file)
    lines = ((number, line) for number, line in enumerate(texts, 1) if line.strip())
    number, line = next(lines, (0, b""))
    if line.lstrip().startswith(b"["):
        yield from ((f"row {at}", row) for at, row in enumerate(_parsed(path, line + file.read(), number), 1))
    elif line:
        yield from ((f"line {at}", _parsed(path, text, at)) for at, text in chain([(number, line)], lines))


def _parsed(path: str, text: bytes, line: int) -> Any:
    """Parse a text that begins on line `line`."""
    try:
        return json.loads(text.rstrip().decode(), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        at = line + text.count(b"\n", 0, error.start)
        problem = f"line {at} is not UTF-8: {error.reason} {text[error.start]:#x}"
        raise DataError(f"{path}: {problem}; use {_TO_UTF8}") from error
    except json.JSONDecodeError as error:
        problem = "a comma too many" if error.doc[error.pos : error.pos + 1] == "," else error.msg
        problem = f"line {line + error.lineno - 1} is not JSON: {problem} at column {error.colno}"
        raise DataError(f"{path}: {problem}; {_FORM}") from error
    except RecursionError as error:
        raise DataError(f"{path}: line {line} is not JSON: it nests too deep; {_FORM}") from error
    except ValueError as error:
        raise DataError(f"{path}: line {line} has a number of too many digits; write it as a text") from error
    except _TwiceError as error:
        raise DataError(f"{path}: line {line} has the key {error} twice; keep one of them") from error


class _TwiceError(Exception):
    """An object has a key twice, of which Python would keep the last."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(next(name for name in names if names.count(name) > 1))
    return row


def _loaded(name: str, split: str, configs: Sequence[str]) -> tuple[Iterator[dict], int]:
    import datasets

    try:
        parts = [datasets.load_dataset(name, config, split=split) for config in configs or (None,)]
    except Exception as error:  # the hub, the network and the loaders raise errors of many types
        raise DataError(
            f"split {split!r} of {name} can be read neither here nor on the hub ({one_line(error)}); "
            "use a file that exists, or check the id, the split, --config and the connection"
        ) from error
    return chain.from_iterable(parts), sum(len(part) for part in parts)


def not_writable(*folders: Path) -> list[str]:
    """Return why nothing can be made in folders that may not exist yet, by making one there; "" if it can."""
    return [_not_writable(folder) for folder in folders]


def _not_writable(folder: Path) -> str:
    if longest := max((part for part in folder.parts if len(os.fsencode(part)) > NAME), key=len, default=""):
        return f"it has a name of {len(longest)} characters, and the system allows {NAME} bytes"
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not (place.is_dir() and os.access(place, os.W_OK)):
        return f"{place} is not a folder, or is read-only"
    try:  # os.access says yes to root in /proc, /sys and on a disk without inodes
        os.rmdir(tempfile.mkdtemp(prefix=".shear-", dir=place))
    except OSError as error:
        return f"nothing can be made in {place} ({os.strerror(error.errno)})"
    return ""
