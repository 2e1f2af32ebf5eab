"""What a data set looks like before it is loaded: its columns, and whether it has a row at all.

OpenRLHF resolves a name in `blending_datasets` (a file, a folder, a hub id, each with its own loader) once Ray, vLLM
and the models are up. The same order is followed here on the first row alone; plain files are read without
`datasets`, whose loaders would first convert them whole.
"""

from __future__ import annotations

import csv
import glob
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path

FILE_KINDS = (".json", ".jsonl", ".csv", ".parquet", ".arrow")


@dataclass(frozen=True)
class FirstRow:
    """The columns found, and whether there is a row."""

    columns: tuple[str, ...]
    empty: bool


def looks_local(name: str) -> bool:
    """Whether `name` is meant as a path on this machine rather than as a hub id."""
    return name.startswith(("/", ".", "~")) or os.path.isdir(name)


def look(spec: str, split: str, wanted: tuple[str, ...], use_modelscope: bool = False) -> FirstRow | None:
    """The first row of one data set, written as OpenRLHF takes it (`name` or `name@data_dir`).

    In JSON files a row may lack a key that later rows have, so rows are read until `wanted` are all there.
    Returns None where only OpenRLHF can tell (ModelScope).

    Raises:
        ValueError: it is not there, cannot be read, is of an unknown kind, or has no such split.
    """
    name, _, data_dir = (part.strip() for part in spec.partition("@"))
    data_dir = data_dir.split("@")[0].strip() or None
    kind = os.path.splitext(name)[-1]
    script = os.path.join(name, f"{os.path.basename(name)}.py")
    if kind == ".py" or os.path.exists(script):
        return _script(name if kind == ".py" else script)
    if kind in FILE_KINDS:
        _require_split(name, split, ("train",))
        return _reading(name, lambda: _file(name, kind, wanted))
    if os.path.isdir(name):
        return _reading(name, lambda: _loaded(name, _open_folder(name, data_dir), split))
    if looks_local(name):
        if os.path.exists(name):
            raise ValueError(f"{name} is not of a known kind; use one of {', '.join(FILE_KINDS)}, or a folder")
        raise ValueError(f"{name} does not exist{_tilde(name)}; use the path of a file or folder, or a hub id")
    if use_modelscope:
        return None
    return _reading(name, lambda: _loaded(name, _open_hub(name, data_dir), split))


def _reading(name: str, read: Callable[[], FirstRow]) -> FirstRow:
    """`read()`, with whatever a reader or the hub raises turned into one line for the user."""
    try:
        return read()
    except _Refused as refused:
        raise ValueError(str(refused)) from None
    except Exception as error:
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        if os.path.exists(name) or kind_of_file(name):
            raise ValueError(f"{name} cannot be read: {cause}") from error
        raise ValueError(
            f"{name} is neither a file or folder here nor a data set that can be reached on the hub ({cause}); "
            "use a path that exists, or check the id and the connection"
        ) from error
