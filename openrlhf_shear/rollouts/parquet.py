"""Parquet files that say what they hold: a kind, a version of its columns, and the settings they were made with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pyarrow
import pyarrow.parquet

from openrlhf_shear.data.files import one_line
from openrlhf_shear.data.writing import beside

VERSION = 1  # of the columns of all kinds; a reader of another one refuses
_KIND, _VERSION, _SETTINGS = (f"openrlhf_shear.{name}".encode() for name in ("kind", "version", "settings"))
_PLAIN = {str: pyarrow.string(), bool: pyarrow.bool_(), int: pyarrow.int32(), float: pyarrow.float32()}
float64 = Annotated[float, pyarrow.float64()]  # of a field that needs more than float32


class TableError(ValueError):
    """A file that cannot be used; the message says why, in one line."""


def write_table(path: str | Path, kind: str, row: type, rows: Iterable[Any], settings: Mapping) -> Path:
    """Write rows, whole or not at all.

    Args:
        row: the dataclass of the rows; its fields are the columns.
        settings: JSON values by name.
    """
    path = Path(path)
    metadata = {_KIND: kind, _VERSION: str(VERSION), _SETTINGS: json.dumps(dict(settings))}
    schema = pyarrow.schema(_columns(row)).with_metadata(metadata)
    table = pyarrow.Table.from_pylist([asdict(one) for one in rows], schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    with beside(path) as partial:
        pyarrow.parquet.write_table(table, partial, compression="zstd")
    return path


def _columns(row: type) -> dict[str, pyarrow.DataType]:
    return {name: _type(hint) for name, hint in get_type_hints(row, include_extras=True).items()}


def _type(hint: Any) -> pyarrow.DataType:
    """Of a field: plain, `Annotated` with its own, a list or a dataclass of these, or one of these and None."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if is_dataclass(hint):
        return pyarrow.struct(_columns(hint))
    if get_origin(hint) is Annotated:
        return hint.__metadata__[0]
    (inner,) = (one for one in get_args(hint) if one is not NoneType)
    return pyarrow.list_(_type(inner)) if get_origin(hint) is list else _type(inner)


def read_table(path: str | Path, kind: str) -> tuple[pyarrow.Table, dict]:
    """The table, and the settings it was made with.

    Raises:
        TableError: it is not there, cannot be read, or is of another kind or version.
    """
    path = Path(path)
    if not path.is_file():
        raise TableError(f"{path} does not exist; use the path of a {kind} table")
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise TableError(f"{path} is no parquet file that can be read: {one_line(error)}") from error
    says = table.schema.metadata or {}
    if says.get(_KIND) != kind.encode():
        raise TableError(f"{path} is not a {kind} table of openrlhf_shear; use one that it wrote")
    version = says[_VERSION].decode()
    if version != str(VERSION):
        raise TableError(
            f"{path} has version {version} of the {kind} table, this openrlhf_shear reads version {VERSION}; "
            "make it again, or use the release that wrote it"
        )
    return table, json.loads(says[_SETTINGS])
