"""Parquet files that say what they hold: a kind, a version of its columns, and the settings they were made with."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet

VERSION = 1  # of the columns of all kinds; a reader of another one refuses
_KIND, _VERSION, _SETTINGS = (f"openrlhf_shear.{name}".encode() for name in ("kind", "version", "settings"))


class TableError(ValueError):
    """A file that cannot be used; the message says why, in one line."""


def write_table(path: Path, kind: str, schema: pyarrow.Schema, rows: Sequence[Mapping], settings: Mapping) -> Path:
    """Write rows, whole or not at all.

    Args:
        settings: JSON values by name.
    """
    metadata = {_KIND: kind, _VERSION: str(VERSION), _SETTINGS: json.dumps(dict(settings))}
    table = pyarrow.Table.from_pylist(list(rows), schema=schema.with_metadata(metadata))
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pyarrow.parquet.write_table(table, beside, compression="zstd")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def read_table(path: Path, kind: str) -> tuple[pyarrow.Table, dict]:
    """The table, and the settings it was made with.

    Raises:
        TableError: it is not there, cannot be read, or is of another kind or version.
    """
    if not path.is_file():
        raise TableError(f"{path} does not exist; use the path of a {kind} table")
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise TableError(f"{path} is no parquet file that can be read: {str(error).splitlines()[0]}") from error
    found = table.schema.metadata or {}
    if found.get(_KIND) != kind.encode():
        raise TableError(f"{path} is not a {kind} table of openrlhf_shear; use one that it wrote")
    version = found[_VERSION].decode()
    if version != str(VERSION):
        raise TableError(
            f"{path} has version {version} of the {kind} table, this openrlhf_shear reads version {VERSION}; "
            "make it again, or use the release that wrote it"
        )
    return table, json.loads(found[_SETTINGS])
