"""The text control: SHEAR's weights and distances of the rollouts' n-grams, in place of their hidden states.

The formula and its knobs are those of the hidden states; a state is the one-hot vector of an n-gram
(`credit.rules.text`). It needs the token ids alone, so it is measured from a finished table, one file a group.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path

import torch
from tqdm import tqdm

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.credit.rules.text import ngram_states
from openrlhf_shear.credit.shear import ShearResult, shear_weights
from openrlhf_shear.rollouts.record import Rollout, TableError, by_group, is_mixed, read_table, write_table

KIND = "text"


@dataclass(frozen=True)
class TextSpans:
    """The text's part of a rollout of a mixed group; its spans are those of the rollout."""

    # problem, sample: which rollout; `group` and `sample` in rollouts.parquet
    problem: str
    sample: int
    weights: list[float]  # (T,)
    span_distances: list[float]  # (K,) to the nearest opposing span, in units of nbar, which is 1
    same_distances: list[float] | None = None  # (K,) to the other rollouts with the same outcome, if asked for


@dataclass(frozen=True)
class TextControl:
    """The text's part of all rollouts of mixed groups, by (problem, sample)."""

    ngram: int  # tokens
    spans: Mapping[tuple[str, int], TextSpans]

    @property
    def label(self) -> str:
        return f"{self.ngram}-grams of the text"


def text_control(
    folder: Path, rollouts: Sequence[Rollout], settings: Mapping, ngram: int, search: SearchConfig
) -> TextControl:
    """Return the text control of a diagnosis' rollouts; measure the groups that have no file in `folder` yet.

    The distances to the same outcome are measured where the rollouts have those of hidden states (`--controls`).

    Args:
        rollouts, settings: of `read_rollouts`; the settings name the knobs of `ShearConfig`, or they are defaults.
        ngram: tokens of an n-gram, at least 1.
        search: settings of the search, which do not change the result.
    """
    groups = [group for group in by_group(rollouts).values() if is_mixed(group)]
    config = ShearConfig(**{knob.name: settings[knob.name] for knob in fields(ShearConfig) if knob.name in settings})
    same = any(rollout.same_distances for rollout in rollouts)
    rows = []
    for number, group in enumerate(tqdm(groups, desc=f"{ngram}-grams of the text", unit="group", disable=None)):
        file = folder / f"group{number:05d}.parquet"
        wanted = asdict(config) | {"ngram": ngram, "same": same, "rollouts": _digest(group)}
        spans = _read(file, wanted)
        if spans is None:
            spans = _measured(group, config, ngram, search, same)
            write_table(file, KIND, TextSpans, spans, wanted)
        rows += spans
    return TextControl(ngram, {(spans.problem, spans.sample): spans for spans in rows})


def _digest(group: Sequence[Rollout]) -> str:
    return sha256(json.dumps([[r.group, r.sample, r.correct, r.token_ids] for r in group]).encode()).hexdigest()


def _read(file: Path, wanted: Mapping) -> list[TextSpans] | None:
    """Return a group's spans; None unless the file has those of these rollouts and settings."""
    try:
        table, made_with = read_table(file, KIND)
    except TableError:
        return None
    return [TextSpans(**row) for row in table.to_pylist()] if made_with == wanted else None


def _measured(
    group: Sequence[Rollout], config: ShearConfig, ngram: int, search: SearchConfig, same: bool
) -> list[TextSpans]:
    ids = [torch.tensor(rollout.token_ids, dtype=torch.int64) for rollout in group]

    def of_text(outcomes: Sequence[bool | None]) -> ShearResult:
        return shear_weights(ngram_states(ids, outcomes, ngram), outcomes, config, search)

    def to_same(i: int) -> list[float]:
        """Return the distances of rollout i to the others of its outcome, as if these alone opposed it."""
        own = group[i].correct
        outcomes = [None if own is None or other.correct != own else other is group[i] for other in group]
        return of_text(outcomes).span_distances[i].tolist()

    result, rows = of_text([rollout.correct for rollout in group]), []
    for i, rollout in enumerate(group):
        measured = result.weights[i].tolist(), result.span_distances[i].tolist(), to_same(i) if same else None
        rows.append(TextSpans(rollout.group, rollout.sample, *measured))
    return rows
