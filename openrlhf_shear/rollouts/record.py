"""Rollouts as a page and the analyses need them: one row each, with its tokens, their weights and its spans.

The diagnosis writes `rollouts.parquet`, and training one file every `--shear.dump_rollouts_every` steps.

Legend: T response tokens, K spans of a rollout; spans as `ot.span_starts` makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openrlhf_shear.rollouts.parquet import read_table, write_table

KIND = "rollouts"


@dataclass(frozen=True)
class Heatmap:
    """Distances between spans of two rollouts of a group, whatever their outcomes, in units of nbar.

    Attributes:
        other: `sample` of the other rollout, greater than this one's.
        values: len(heatmap_spans) of this rollout x len(heatmap_spans) of the other, row by row.
    """

    other: int
    values: list[float]


@dataclass(frozen=True)
class Rollout:
    """One rollout of a group. Lists that a rule does not give are None.

    Attributes:
        group: which prompt of the file, by a name of its own.
        sample: which rollout of the group, from 0.
        prompt: as the policy read it.
        label: what the grader was told.
        correct: None if its reward failed.
        advantage: before any weight, the group's normalised reward; None if not known.
        truncated: it ended at the token limit.
        tokens: (T,) texts; joined, they are the response.
        token_ids: (T,).
        weights: (T,) what a token's advantage is multiplied by: omega for SHEAR. None where no weights were made.
        token_advantages: (T,) as trained on, of training only.
        span_starts: (K,) tokens.
        span_distances: (K,) to the nearest opposing span, in units of nbar; infinite where nothing opposes.
        nearest_sample: (K,) `sample` of the rollout of the nearest opposing span; -1 where nothing opposes.
        nearest_span: (K,) which of its spans; -1 likewise.
        heatmap_spans: the spans that heatmaps show, ascending, since long rollouts have too many.
        heatmaps: with rollouts of a greater `sample`.
        answer_start: the token in which the final answer begins; None if there is none.
        first_error: the first wrong token, where the task knows it; None if there is none or it does not.
    """

    group: str
    sample: int
    prompt: str
    label: str
    correct: bool | None
    reward: float | None
    advantage: float | None
    truncated: bool
    tokens: list[str]
    token_ids: list[int]
    weights: list[float] | None = None
    token_advantages: list[float] | None = None
    span_starts: list[int] | None = None
    span_distances: list[float] | None = None
    nearest_sample: list[int] | None = None
    nearest_span: list[int] | None = None
    heatmap_spans: list[int] | None = None
    heatmaps: list[Heatmap] | None = None
    answer_start: int | None = None
    first_error: int | None = None

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
    """Write rollouts.

    Args:
        settings: JSON values; `rule` (its name) and `window` (tokens, of SHEAR) are shown by a page, `step` and `model`
            too where they are there.
    """
    return write_table(path, KIND, Rollout, rollouts, settings)


def read_rollouts(path: str | Path) -> tuple[list[Rollout], dict]:
    """What `write_rollouts` wrote, and its settings.

    Raises:
        TableError: it is no such file, or of another version.
    """
    table, settings = read_table(path, KIND)
    rows = []
    for row in table.to_pylist():
        heatmaps = row.pop("heatmaps")
        rows.append(Rollout(**row, heatmaps=None if heatmaps is None else [Heatmap(**one) for one in heatmaps]))
    return rows, settings
