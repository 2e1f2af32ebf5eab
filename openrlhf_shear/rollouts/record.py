"""Rollouts as a page and the analyses need them, one row each, in parquet files that say what they hold: a kind, a
version of its columns, and the settings they were made with.

Legend: T response tokens, K spans of a rollout; spans as `ot.span_starts` makes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from openrlhf_shear.data.files import one_line
from openrlhf_shear.data.writing import beside

if TYPE_CHECKING:
    import pyarrow

VERSION = 1  # of the columns of all kinds; a reader of another one refuses
_KIND, _VERSION, _SETTINGS = (f"openrlhf_shear.{name}".encode() for name in ("kind", "version", "settings"))
# names of Arrow's types: pyarrow is as large as all else that a page needs, and is loaded where a file is
_PLAIN = {str: "string", bool: "bool_", int: "int32", float: "float32"}
float64 = Annotated[float, "float64"]  # of a field that needs more than float32
KIND = "rollouts"


class TableError(ValueError):
    """A file that cannot be used; the message says why, in one line."""


def write_table(path: str | Path, kind: str, row: type, rows: Iterable[Any], settings: Mapping) -> Path:
    """Write rows, whole or not at all; columns are the fields of the dataclass `row`, settings JSON values by name."""
    import pyarrow
    import pyarrow.parquet

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
    import pyarrow

    if hint in _PLAIN:
        return getattr(pyarrow, _PLAIN[hint])()
    if is_dataclass(hint):
        return pyarrow.struct(_columns(hint))
    if get_origin(hint) is Annotated:
        return getattr(pyarrow, hint.__metadata__[0])()
    (inner,) = (one for one in get_args(hint) if one is not NoneType)
    return pyarrow.list_(_type(inner)) if get_origin(hint) is list else _type(inner)


def read_table(path: str | Path, kind: str) -> tuple[pyarrow.Table, dict]:
    """The table, and the settings it was made with; TableError where it is not there, cannot be read, or is of another
    kind or version.
    """
    import pyarrow
    import pyarrow.parquet

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


@dataclass(frozen=True)
class Heatmap:
    """Distances between spans of two rollouts of a group, whatever their outcomes, in units of nbar."""

    other: int  # `sample` of the other rollout, greater than this one's
    values: list[float]  # len(heatmap_spans) of this rollout x len(heatmap_spans) of the other, row by row


@dataclass(frozen=True)
class Rollout:
    """One rollout of a group. Lists that a rule does not give are None."""

    group: str  # which prompt of the file, by a name of its own
    sample: int  # which rollout of the group, from 0
    prompt: str  # as the policy read it
    label: str  # what the grader was told
    correct: bool | None  # None if its reward failed
    reward: float | None
    advantage: float | None  # before any weight, the group's normalised reward; None if not known
    truncated: bool  # it ended at the token limit
    tokens: list[str]  # (T,) texts; joined, they are the response
    token_ids: list[int]  # (T,)
    # (T,) what a token's advantage is multiplied by: omega for SHEAR. None where no weights were made
    weights: list[float] | None = None
    token_advantages: list[float] | None = None  # (T,) as trained on, of training only
    span_starts: list[int] | None = None  # (K,) tokens
    # (K,) to the nearest opposing span, in units of nbar; infinite where nothing opposes
    span_distances: list[float] | None = None
    # (K,) `sample` of the rollout of the nearest opposing span; -1 where nothing opposes
    nearest_sample: list[int] | None = None
    nearest_span: list[int] | None = None  # (K,) which of its spans; -1 likewise
    heatmap_spans: list[int] | None = None  # the spans that heatmaps show, ascending, since long rollouts have too many
    heatmaps: list[Heatmap] | None = None  # with rollouts of a greater `sample`
    answer_start: int | None = None  # the token in which the final answer begins; None if there is none
    # the first wrong token, where the task knows it; None if there is none or it does not
    first_error: int | None = None
    # (K,) as `span_distances`: to the other rollouts with the same outcome, and to the opposing ones if the group's
    # outcomes stood in a random order. None where these controls were not asked for
    same_distances: list[float] | None = None
    permuted_distances: list[float] | None = None
    largest_norm: float | None = None  # of a token's hidden state, in units of nbar; with the controls

    @property
    def response(self) -> str:
        return "".join(self.tokens)


def by_group(rollouts: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    """The rollouts of each group, groups and rollouts in the order given."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return groups


def is_mixed(group: Sequence[Rollout]) -> bool:
    """Whether both outcomes are among a group's rollouts."""
    return {True, False} <= {rollout.correct for rollout in group}


def write_rollouts(path: str | Path, rollouts: Iterable[Rollout], settings: Mapping) -> Path:
    """Write rollouts; of the settings, JSON values, a page shows `rule` (its name) and `window` (tokens, of SHEAR), and
    `step` and `model` where they are there.
    """
    return write_table(path, KIND, Rollout, rollouts, settings)


def read_rollouts(path: str | Path) -> tuple[list[Rollout], dict]:
    """What `write_rollouts` wrote, and its settings; TableError where it is no such file, or of another version."""
    table, settings = read_table(path, KIND)
    rows = []
    for row in table.to_pylist():
        heatmaps = row.pop("heatmaps")
        rows.append(Rollout(**row, heatmaps=None if heatmaps is None else [Heatmap(**one) for one in heatmaps]))
    return rows, settings
