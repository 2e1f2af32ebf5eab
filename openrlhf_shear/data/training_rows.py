"""The rows of data sets as preflight and training read them, with the values in the file; their order and digest.

Names are resolved in OpenRLHF's order. OpenRLHF's reader, `datasets`, gives every column one type. "2024-05-01" becomes
a datetime, and 1 beside 2.5 becomes 1.0. A key that only other rows have becomes None, and "007" in a CSV file 7.
"""

import contextlib
import glob
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator

from openrlhf_shear.data.columns import label_at, value_at
from openrlhf_shear.data.files import DataError, csv_rows, json_rows, looks_local, near_path, one_line, require
from openrlhf_shear.data.hub import has_cached, unreachable

COUNT, CONTENTS = "number of prompts", "digest of the prompts, their labels and their order"
FILE_KINDS = (".json", ".jsonl", ".csv", ".parquet", ".arrow")
_encode = json.JSONEncoder(default=str).encode
_AT_ONCE = 64  # rows of a table that are in memory as objects, with their pictures
_PLAIN = {".json": json_rows, ".jsonl": json_rows, ".csv": csv_rows}  # texts, read without `datasets`


class SplitError(DataError):
    """The data set does not have the requested split."""


def training_rows(
    spec: str, split: str, use_modelscope: bool = False, hub: bool = False
) -> Iterator[tuple[str, dict]] | None:
    """Return (place, row) of a data set, named as for OpenRLHF: `name` or `name@data_dir`.

    A local data set gives all rows, a remote data set its first row, or all rows with `hub`. The result is None if only
    OpenRLHF can read the data set (ModelScope).

    Raises DataError, at once or while reading: the data set is missing, cannot be read, is of an unknown kind, or does
    not have the split.
    """
    name, _, data_dir = (part.strip() for part in spec.partition("@"))
    data_dir = data_dir.split("@")[0].strip() or None
    if not name:
        raise DataError(f"a data set has no name: got {spec!r}; use no comma before or behind the others")
    kind = _kind(name)
    if kind == ".py" or os.path.exists(os.path.join(name, f"{os.path.basename(name)}.py")):
        files = f"use one of {', '.join(FILE_KINDS)}, or a folder"
        raise DataError(f"{name} is a loading script, which `datasets` no longer runs; {files}")
    if kind in FILE_KINDS:
        _require_split(name, split, ("train",))
    elif not os.path.isdir(name):
        if os.path.exists(name):
            raise DataError(f"{name} is not of a known kind; use one of {', '.join(FILE_KINDS)}, or a folder")
        if looks_local(name):
            raise DataError(f"{name} does not exist{near_path(name)}; use the path of a file or folder, or a hub id")
        if use_modelscope:
            return None
    return _in_one_line(name, _rows(name, kind, data_dir, split, hub))


def _require_split(name: str, split: str, known: Iterable[str]) -> None:
    if split not in known:
        raise SplitError(f"{name} has no split {split!r}; use one of {', '.join(known)}")


def _in_one_line(name: str, rows: Iterator[tuple[str, dict]]) -> Iterator[tuple[str, dict]]:
    try:
        yield from rows
    except DataError:
        raise
    except Exception as error:  # readers and the hub raise errors of many types
        cause = one_line(error.__cause__ or error)
        cause += f"; pip install {error.name}" if isinstance(error, ModuleNotFoundError) else ""
        if os.path.exists(name) or name.endswith(FILE_KINDS):
            raise DataError(f"{name} cannot be read: {cause}") from error
        raise DataError(
            f"{name} is neither a file or folder here nor a data set that can be reached on the hub ({cause})"
            f"{near_path(name)}; use a path that exists, or check the id and the connection"
        ) from error


def _rows(name: str, kind: str, data_dir: str | None, split: str, hub: bool) -> Iterator[tuple[str, dict]]:
    if kind not in FILE_KINDS:
        local = os.path.isdir(name)
        if paths := _plain_files(name, data_dir, split) if local else ():
            yield from _plain_rows(name, paths)
        else:
            yield from _numbered(_opened(name, data_dir, whole=hub), name, split, whole=local or hub)
        return
    remote = "://" in name
    paths = [name] if remote or os.path.exists(name) else sorted(glob.glob(name))
    if not paths:
        raise DataError(f"{name} does not exist{near_path(name)}; use the path of an existing file")
    if kind in _PLAIN:
        rows = _plain_rows(name, paths)
        yield from itertools.islice(rows, None if hub or not remote else 1)
        return
    for path in () if remote else paths:
        require(path)
    import datasets

    data = datasets.load_dataset(kind.removeprefix("."), data_files=name, streaming=True)
    yield from _numbered(data, name, "train", whole=hub or not remote)


def _plain_rows(name: str, paths: list[str]) -> Iterator[tuple[str, dict]]:
    for path in paths:
        rows = _PLAIN[_kind(path)](path)
        yield from ((at if path == name else f"{path}, {at}", row) for at, row in rows)


def _plain_files(name: str, data_dir: str | None, split: str) -> list[str]:
    """Return the files of a folder's split, found by `datasets`, if all can be read without it; else no files."""
    if _is_saved(name):
        return []
    import datasets

    found = datasets.load_dataset_builder(name, data_dir=data_dir).config.data_files or {}
    found = {str(known): [str(file) for file in files] for known, files in found.items()}
    kinds = {_kind(file) for files in found.values() for file in files}
    _require_one_kind(os.path.join(name, data_dir or ""), kinds)
    if not kinds.issubset(_PLAIN):
        return []
    if found:
        _require_split(name, split, found)
    return found.get(split, [])


def _require_one_kind(folder: str, read: set[str]) -> None:
    """Raise DataError if a folder has data files that `datasets` leaves out: it reads those of the most frequent kind.

    A .json file beside other kinds may describe them.
    """
    same = read | ({".json", ".jsonl"} if read & {".json", ".jsonl"} else {".json"})
    files = (os.path.join(place, file) for place, _, names in os.walk(folder) for file in names)
    if others := sorted(file for file in files if _kind(file) in FILE_KINDS and _kind(file) not in same):
        shown = f"{' and '.join(sorted(read))} and not {others[0]}"
        raise DataError(f"{folder} has files of several kinds: {shown} would be read; use a folder for each kind")


def _kind(path: str) -> str:
    return os.path.splitext(path.removesuffix(".gz"))[-1]


def _is_saved(folder: str) -> bool:
    """Say whether `load_from_disk` can read a folder, which OpenRLHF tries first: it needs one of these files."""
    return any(os.path.exists(os.path.join(folder, file)) for file in ("state.json", "dataset_dict.json"))


def _opened(name: str, data_dir: str | None, whole: bool):
    import datasets

    if _is_saved(name):
        return datasets.load_from_disk(name)
    problem = "" if os.path.isdir(name) or "://" in name else unreachable()
    if problem and not has_cached(name):
        raise OSError(problem)
    if problem:
        return datasets.load_dataset(name, data_dir=data_dir)
    return datasets.load_dataset(name, data_dir=data_dir, streaming=not whole)


def _numbered(data, name: str, split: str, whole: bool) -> Iterator[tuple[str, dict]]:
    if isinstance(data, dict):
        _require_split(name, split, data)
        data = data[split]
    with _quiet():
        batches = data.iter(batch_size=_AT_ONCE if whole else 1)  # a row at a time would take several times as long
        rows = (dict(zip(batch, row, strict=True)) for batch in batches for row in zip(*batch.values(), strict=True))
        for number, row in enumerate(rows if whole else itertools.islice(rows, 1), 1):
            yield f"row {number}", row


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence `datasets`, which logs the errors that it also raises."""
    logger = logging.getLogger("datasets")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def blended(sets: list[list], probabilities: str | None, seed: int) -> list:
    """Concatenate the sets or, with probabilities, interleave them by `datasets`, which gets numbers for rows."""
    if probabilities is None:
        return list(itertools.chain.from_iterable(sets))
    from datasets import Dataset as Numbers
    from datasets import interleave_datasets

    numbered = [
        Numbers.from_dict({"set": [number] * len(rows), "row": range(len(rows))}) for number, rows in enumerate(sets)
    ]
    shares = [float(share) for share in probabilities.split(",")]
    order = interleave_datasets(numbered, probabilities=shares, seed=seed, stopping_strategy="all_exhausted")
    return [sets[place["set"]][place["row"]] for place in order]


def of_digests(digests: Collection[bytes]) -> dict[str, object]:
    """Return the number of rows, and a digest of their prompts and labels in order; images are not included."""
    return {COUNT: len(digests), CONTENTS: hashlib.sha256(b"".join(digests)).hexdigest()[:16]}


def row_digest(row: dict, input_key: str, label_key: str | None) -> bytes:
    """Return the SHA-256 of a row's prompt and label."""
    read = [value_at(row, input_key), None if label_key is None else label_at(row, label_key)]
    return hashlib.sha256(_encode(read).encode()).digest()
