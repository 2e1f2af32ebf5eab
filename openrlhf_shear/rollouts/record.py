"""Rollouts for the page and the analyses, one row each, in parquet files.

A file states its kind, the version of its columns, and the settings that made it.

Legend: T response tokens, K spans of a rollout; spans as `transport.span_starts` makes them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from openrlhf_shear.data.files import one_line
from openrlhf_shear.data.writing import beside

if TYPE_CHECKING:
    import pyarrow.parquet

VERSION = 1  # of the columns of all kinds; a reader refuses any other version
_KIND, _VERSION, _SETTINGS = (f"openrlhf_shear.{name}".encode() for name in ("kind", "version", "settings"))
# names of Arrow types, not the types: pyarrow is as large as the rest of a page's imports, so only file access loads it
_PLAIN = {str: "string", bool: "bool_", int: "int32", float: "float32"}
float64 = Annotated[float, "float64"]  # for a field that needs more than float32
KIND = "rollouts"
_STEPS, _DIAGNOSIS = "step[0-9]*.parquet", "rollouts.parquet"  # files of a run and of a diagnosis
_AT_ONCE = 64  # rows that are in memory as columns
_SHARED = ("rule", "estimator", "window", "stride", "model")  # a page shows a single value of each


class TableError(ValueError):
    """An unusable file; the message says why, in one line."""


def write_table(path: str | Path, kind: str, row: type, rows: Iterable[Any], settings: Mapping) -> Path:
    """Write rows, whole or not at all; columns are the fields of the dataclass `row`, settings are JSON values."""
    import pyarrow
    import pyarrow.parquet

    path = Path(path)
    metadata = {_KIND: kind, _VERSION: str(VERSION), _SETTINGS: json.dumps(dict(settings))}
    schema = pyarrow.schema(_columns(row)).with_metadata(metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = iter(rows)
    with beside(path) as partial, pyarrow.parquet.ParquetWriter(partial, schema, compression="zstd") as file:
        while part := list(islice(rows, _AT_ONCE)):
            columns = [[_plain(getattr(each, name)) for each in part] for name in schema.names]
            arrays = [pyarrow.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
            file.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
    return path


def _plain(value: Any) -> Any:
    """Return the dictionaries of dataclasses in a row."""
    if is_dataclass(value):
        return vars(value)
    return [_plain(each) for each in value] if isinstance(value, list) and value and is_dataclass(value[0]) else value


def _columns(row: type) -> dict[str, pyarrow.DataType]:
    return {name: _type(hint) for name, hint in get_type_hints(row, include_extras=True).items()}


def _type(hint: Any) -> pyarrow.DataType:
    """Return the Arrow type of a field: plain, `Annotated`, a dataclass or a list of these, or any of them or None."""
    import pyarrow

    if hint in _PLAIN:
        return getattr(pyarrow, _PLAIN[hint])()
    if is_dataclass(hint):
        return pyarrow.struct(_columns(hint))
    if get_origin(hint) is Annotated:
        return getattr(pyarrow, hint.__metadata__[0])()
    (inner,) = (part for part in get_args(hint) if part is not NoneType)
    return pyarrow.list_(_type(inner)) if get_origin(hint) is list else _type(inner)


def read_table(path: str | Path, kind: str) -> tuple[pyarrow.Table, dict]:
    """Return the table and the settings that made it.

    Raises TableError where the file is missing or unreadable, or of another kind or version.
    """
    file, settings = _opened(path, kind)
    with _readable(path):
        return file.read(), settings


@contextmanager
def _readable(path: str | Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise TableError(f"{path} is no parquet file that can be read: {one_line(error)}") from error


def _opened(path: str | Path, kind: str) -> tuple[pyarrow.parquet.ParquetFile, dict]:
    import pyarrow.parquet

    if not Path(path).is_file():
        raise TableError(f"{path} does not exist; use the path of a {kind} table")
    with _readable(path):
        file = pyarrow.parquet.ParquetFile(path)
    says = file.schema_arrow.metadata or {}
    if says.get(_KIND) != kind.encode():
        raise TableError(f"{path} is not a {kind} table of openrlhf_shear; use one that it wrote")
    version = says[_VERSION].decode()
    if version != str(VERSION):
        raise TableError(
            f"{path} has version {version} of the {kind} table, this openrlhf_shear reads version {VERSION}; "
            "make it again, or use the release that wrote it"
        )
    return file, json.loads(says[_SETTINGS])


@dataclass(frozen=True)
class Heatmap:
    """Distances between spans of two rollouts of a group, whatever their outcomes, in units of nbar."""

    other: int  # `sample` of the other rollout, greater than this one's
    values: list[float]  # len(heatmap_spans) of this rollout x len(heatmap_spans) of the other, row by row


@dataclass(frozen=True)
class Rollout:
    """A rollout of a group. Lists are None where the rule does not give them."""

    group: str  # the unique name of its prompt within the file
    sample: int  # index of the rollout within the group, from 0
    prompt: str  # as the policy read it
    label: str  # as the grader read it

    correct: bool | None  # None if its reward failed
    reward: float | None
    advantage: float | None  # before any weight: the group's normalised reward; None if not known
    truncated: bool  # whether it ended at the token limit
    tokens: list[str]  # (T,) texts; joined, they are the response
    token_ids: list[int]  # (T,)
    # (T,) factors on the tokens' advantages: omega for SHEAR. None where no weights were made
    weights: list[float] | None = None
    token_advantages: list[float] | None = None  # (T,) as trained on; training only
    span_starts: list[int] | None = None  # (K,) tokens
    # (K,) to the nearest opposing span, in units of nbar; infinite where no span opposes
    span_distances: list[float] | None = None
    # (K,) `sample` of the rollout with the nearest opposing span; -1 where no span opposes
    nearest_sample: list[int] | None = None
    nearest_span: list[int] | None = None  # (K,) index of that span in its rollout; -1 likewise
    heatmap_spans: list[int] | None = None  # the spans that heatmaps show, ascending; long rollouts have too many
    heatmaps: list[Heatmap] | None = None  # with rollouts of a greater `sample`
    answer_start: int | None = None  # the token in which the final answer begins; None without an answer
    # the first wrong token; None if there is none or the task does not know it
    first_error: int | None = None
    # (K,) as `span_distances`: to the other rollouts with the same outcome, and to the opposing rollouts after the
    # group's outcomes were put in a random order. None unless these controls were asked for
    same_distances: list[float] | None = None
    permuted_distances: list[float] | None = None
    largest_norm: float | None = None  # of a token's hidden state, in units of nbar; with the controls only

    @property
    def response(self) -> str:
        return "".join(self.tokens)


def by_group(rollouts: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    """Return the rollouts of each group, groups and rollouts in the order given."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return groups


def is_mixed(group: Sequence[Rollout]) -> bool:
    """Return whether a group has both outcomes among its rollouts."""
    return {True, False} <= {rollout.correct for rollout in group}


def write_rollouts(path: str | Path, rollouts: Iterable[Rollout], settings: Mapping) -> Path:
    """Write rollouts; `settings` are JSON values.

    A page shows the settings `rule` (its name), `window` (tokens, of SHEAR), `step` and `model`, where given.
    """
    return write_table(path, KIND, Rollout, rollouts, settings)


def read_rollouts(path: str | Path) -> tuple[list[Rollout], dict]:
    """Return what `write_rollouts` wrote, and its settings; TableError for another kind or version."""
    table, settings = read_table(path, KIND)
    return list(_rollouts(table)), settings


def _rollouts(table: pyarrow.Table) -> Iterator[Rollout]:
    for row in table.to_pylist():
        heatmaps = row.pop("heatmaps")
        yield Rollout(**row, heatmaps=None if heatmaps is None else [Heatmap(**each) for each in heatmaps])


def read_groups(path: str | Path, limit: int | None = None) -> tuple[Iterator[list[Rollout]], int]:
    """Return the first `limit` groups of a file, a few of which are in memory, and the number of all its groups.

    Raises TableError, at once or while reading, as `read_rollouts` does.
    """
    file, _ = _opened(path, KIND)
    with _readable(path):
        names = file.read(["group"])["group"].to_pylist()
    sizes = Counter(names)
    return _groups(path, file, names, {name: sizes[name] for name in islice(sizes, limit)}), len(sizes)


def _groups(
    path, file: pyarrow.parquet.ParquetFile, names: list[str], sizes: dict[str, int]
) -> Iterator[list[Rollout]]:
    groups, end = defaultdict(list), 0
    for part in range(file.num_row_groups):
        start, end = end, end + file.metadata.row_group(part).num_rows
        if sizes.keys().isdisjoint(names[start:end]):
            continue
        with _readable(path):
            table = file.read_row_group(part)
        for rollout in _rollouts(table):
            groups[rollout.group].append(rollout)
            if len(groups[rollout.group]) == sizes.get(rollout.group):
                yield groups.pop(rollout.group)


def run_files(path: str | Path) -> tuple[dict[Path, int | None], dict]:
    """Return the files below a run's folder with their steps, or a single file without one; and their settings.

    Settings are as `write_rollouts` keeps them, with `step` only for a single file. Raises TableError: the folder holds
    no such file, or files of several runs; or a file cannot be read.
    """
    path = Path(path)
    files = {file: _opened(file, KIND)[1] for file in (_files(path) if path.is_dir() else [path])}
    first, *others = files
    for file in others:
        if differ := [name for name in _SHARED if files[file].get(name) != files[first].get(name)]:
            raise TableError(f"{first} and {file} differ in their {differ[0]}; name one file")
    if not others:
        return {first: None}, files[first]
    shared = {name: value for name, value in files[file].items() if name != "step"}
    return {file: int(settings["step"]) for file, settings in files.items()}, shared


def _files(folder: Path) -> list[Path]:
    """Return the files of a run's steps, else the file of a diagnosis."""
    found: Iterable[Path] = sorted(folder.rglob(_STEPS)) or [file for file in [folder / _DIAGNOSIS] if file.is_file()]
    folders = sorted({file.parent for file in found})
    if not folders:
        raise TableError(
            f"{folder} holds no rollouts ({_STEPS} or {_DIAGNOSIS}); train with --credit.dump_rollouts_every 20"
        )
    if len(folders) > 1:
        raise TableError(f"{folder} holds rollouts of several runs; name a run, e.g. {folders[0]}")
    return list(found)
