"""The table that the analyses read: one row a prefix, with its continuation success and its window's distance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pandas
import pyarrow as pa

from openrlhf_shear.rollouts.parquet import read_table, write_table

KIND = "prefixes"


@dataclass(frozen=True)
class Prefix:
    """The first `position` tokens of a rollout of a mixed group, none of the final answer's in its window.

    Attributes:
        problem, sample: which rollout; `group` and `sample` in rollouts.parquet.
        correct: the outcome of the rollout that this is a prefix of.
        position: tokens, at least the window.
        tokens: of the whole rollout.
        distance: of the last `window` tokens to the nearest opposing span, in units of nbar; infinite where nothing
            could be measured.
        omega: the weight of the prefix's last token.
        completions: those with a verdict; may be 0.
        successes: those that are correct.
        truncated: those that ended at the token limit, of which a deep prefix leaves less.
    """

    problem: str
    sample: int
    correct: bool
    position: int
    tokens: int
    distance: float
    omega: float
    completions: int
    successes: int
    truncated: int = 0


SCHEMA = pa.schema(
    {
        "problem": pa.string(),
        "sample": pa.int32(),
        "correct": pa.bool_(),
        "position": pa.int32(),
        "tokens": pa.int32(),
        "distance": pa.float64(),
        "omega": pa.float32(),
        "completions": pa.int32(),
        "successes": pa.int32(),
        "truncated": pa.int32(),
    }
)
assert SCHEMA.names == [field.name for field in fields(Prefix)]


def write_prefixes(path: str | Path, prefixes: Iterable[Prefix], settings: Mapping) -> Path:
    """Write prefixes.

    Args:
        settings: JSON values: `model`, `dataset`, `window`, `stride`, `completions` (asked for, a prefix) and
            `samples_per_prompt` at least.
    """
    return write_table(Path(path), KIND, SCHEMA, [asdict(prefix) for prefix in prefixes], settings)


def read_prefixes(path: str | Path) -> tuple[pandas.DataFrame, dict]:
    """The columns of `Prefix` and `accuracy`, successes over completions, in [0, 1] and NaN without any; in the order
    problem, sample, position; and the settings.

    Raises:
        TableError: it is no such file, or of another version.
    """
    table, settings = read_table(Path(path), KIND)
    frame = table.to_pandas()
    frame["accuracy"] = frame["successes"] / frame["completions"]
    return frame.sort_values(["problem", "sample", "position"], ignore_index=True), settings
