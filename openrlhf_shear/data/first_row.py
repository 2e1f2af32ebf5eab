"""What a data set looks like before it is loaded, looked up in the order in which OpenRLHF resolves its name."""

import csv
import glob
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from itertools import islice

from openrlhf_shear.data.files import DataError, json_values, looks_local, one_line, tilde

FILE_KINDS = (".json", ".jsonl", ".csv", ".parquet", ".arrow")


class SplitError(DataError):
    """A data set without the split asked for."""


@dataclass(frozen=True)
class FirstRow:
    columns: tuple[str, ...]
    empty: bool  # there is no row at all


def look(spec: str, split: str, wanted: tuple[str, ...], use_modelscope: bool = False) -> FirstRow | None:
    """The first row of one data set, written as OpenRLHF takes it (`name` or `name@data_dir`); None where only OpenRLHF
    can tell (ModelScope). Rows of JSON may lack a key that later ones have: they are read until all `wanted` are there.

    Raises DataError: it is not there, cannot be read, is of an unknown kind, or has no such split.
    """
    name, _, data_dir = (part.strip() for part in spec.partition("@"))
    data_dir = data_dir.split("@")[0].strip() or None
    kind = os.path.splitext(name)[-1]
    script = os.path.join(name, f"{os.path.basename(name)}.py")
    if kind == ".py" or os.path.exists(script):
        return _script(name if kind == ".py" else script)
    if kind in FILE_KINDS:
        _require_split(name, split, ("train",))
    elif not os.path.isdir(name):
        if looks_local(name) and os.path.exists(name):
            raise DataError(f"{name} is not of a known kind; use one of {', '.join(FILE_KINDS)}, or a folder")
        if looks_local(name):
            raise DataError(f"{name} does not exist{tilde(name)}; use the path of a file or folder, or a hub id")
        if use_modelscope:
            return None
    try:
        if kind in FILE_KINDS:
            return _file(name, kind, wanted)
        return _loaded(name, _opened(name, data_dir), split)
    except DataError:
        raise
    except Exception as error:  # whatever a reader or the hub raises, in one line
        cause = one_line(error)
        if os.path.exists(name) or name.endswith(FILE_KINDS):
            raise DataError(f"{name} cannot be read: {cause}") from error
        raise DataError(
            f"{name} is neither a file or folder here nor a data set that can be reached on the hub ({cause}); "
            "use a path that exists, or check the id and the connection"
        ) from error


def _require_split(name: str, split: str, known: Iterable[str]) -> None:
    if split not in known:
        raise SplitError(f"{name} has no split {split!r}; use one of {', '.join(known)}")


def _script(path: str) -> None:
    if not os.path.isfile(path):
        raise DataError(f"{path} does not exist; use the path of a data set")
    version = metadata.version("datasets")
    if int(version.split(".")[0]) >= 4:
        raise DataError(
            f"{path} is a loading script, which datasets {version} no longer runs; "
            f"use one of {', '.join(FILE_KINDS)}, or a folder"
        )


def _file(name: str, kind: str, wanted: tuple[str, ...]) -> FirstRow:
    paths = [name] if "://" in name or os.path.exists(name) else sorted(glob.glob(name))
    if not paths:
        raise DataError(f"{name} does not exist{tilde(name)}; use the path of a file that is there")
    if "://" not in name:
        if kind == ".csv":
            with open(paths[0], encoding="utf-8-sig", newline="") as file:
                rows = list(islice(filter(None, csv.reader(file)), 2))
            return FirstRow(tuple(rows[0]) if rows else (), len(rows) < 2)
        if kind == ".parquet":
            import pyarrow.parquet

            with pyarrow.parquet.ParquetFile(paths[0]) as file:
                return FirstRow(tuple(file.schema_arrow.names), file.metadata.num_rows == 0)
        if kind in (".json", ".jsonl"):
            with suppress(json.JSONDecodeError):  # an object over several lines, or broken: the loader knows where
                return _json(paths, wanted)
    import datasets

    builder = {".jsonl": "json"}.get(kind, kind.removeprefix("."))
    return _loaded(name, datasets.load_dataset(builder, data_files=name, streaming=True), "train")


def _json(paths: list[str], wanted: tuple[str, ...]) -> FirstRow:
    columns: dict[str, None] = {}
    empty = True
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for _, row in json_values(file, lambda _, text: json.loads(text)):
                if not isinstance(row, dict):
                    got = type(row).__name__
                    raise DataError(f"{path} must hold objects, one a row: got {got}; use {{...}} per line")
                columns |= dict.fromkeys(row)
                empty = False
                if columns.keys() >= set(wanted):
                    return FirstRow(tuple(columns), empty)
    return FirstRow(tuple(columns), empty)


def _opened(name: str, data_dir: str | None):
    import datasets

    # OpenRLHF tries load_from_disk on every folder; only folders with one of these files can pass.
    if any(os.path.exists(os.path.join(name, file)) for file in ("state.json", "dataset_dict.json")):
        return datasets.load_from_disk(name)
    try:
        return datasets.load_dataset(name, data_dir=data_dir, streaming=True)
    except OSError:
        if os.path.isdir(name):
            raise
        return datasets.load_dataset(
            name, data_dir=data_dir
        )  # not reachable: what is left of an earlier run in the cache


def _loaded(name: str, data, split: str) -> FirstRow:
    if isinstance(data, dict):
        _require_split(name, split, data)
        data = data[split]
    row = next(iter(data), None)
    return FirstRow(tuple(data.column_names or row or ()), row is None)
