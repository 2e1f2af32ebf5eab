"""Prefixes of rollouts: which there are, the questions that go on from them, and the table that the analyses read."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pandas

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.ot import span_starts
from openrlhf_shear.rollouts.columns import CONTROL_COLUMNS
from openrlhf_shear.rollouts.record import Rollout, float64, read_table, write_table
from openrlhf_shear.sampling.records import Completion, Question

KIND = "prefixes"


@dataclass(frozen=True)
class Prefix:
    """The first `position` tokens of a rollout of a mixed group, none of the final answer's in its window."""

    # problem, sample: which rollout; `group` and `sample` in rollouts.parquet
    problem: str
    sample: int
    correct: bool  # the outcome of the rollout that this is a prefix of
    position: int  # tokens, at least the window
    tokens: int  # of the whole rollout
    # of the last `window` tokens to the nearest opposing span, in units of nbar; infinite where nothing could be
    # measured
    distance: float64
    omega: float  # the weight of the prefix's last token
    completions: int  # those with a verdict; may be 0
    successes: int  # those that are correct
    truncated: int = 0  # those that ended at the token limit
    # as `distance`, of the controls of `credit.evidence`; NaN where they were not measured
    same_distance: float64 = math.nan
    permuted_distance: float64 = math.nan


def write_prefixes(path: str | Path, prefixes: Iterable[Prefix], settings: Mapping) -> Path:
    """Write prefixes; the settings are JSON values: `model`, `dataset`, `window`, `stride`, `completions` (asked for, a
    prefix) and `samples_per_prompt` at least.
    """
    return write_table(path, KIND, Prefix, prefixes, settings)


def read_prefixes(path: str | Path) -> tuple[pandas.DataFrame, dict]:
    """The columns of `Prefix` and `accuracy`, successes over completions, in [0, 1] and NaN without any; in the order
    problem, sample, position; and the settings. TableError where it is no such file, or of another version.
    """
    table, settings = read_table(path, KIND)
    frame = table.to_pandas()
    for name in CONTROL_COLUMNS:
        frame[f"{name}_distance"] = frame.get(f"{name}_distance", math.nan)  # of a table that is older than these
    frame["accuracy"] = frame["successes"] / frame["completions"]
    return frame.sort_values(["problem", "sample", "position"], ignore_index=True), settings


def positions(tokens: int, answer: int | None, config: ShearConfig) -> list[int]:
    """Lengths of the prefixes of a response: the window, and a stride more each, none with a token of the answer.

    A whole response is no prefix. The j-th prefix ends with span j of the response.

    >>> positions(10, None, ShearConfig(window=4, stride=3)), positions(10, 6, ShearConfig(window=4, stride=3))
    ([4, 7], [4])
    """
    last = tokens - 1 if answer is None else min(tokens - 1, answer)
    starts = span_starts(tokens, config).tolist()
    return [start + config.window for start in starts if start + config.window <= last]


def prefix_questions(
    questions: Mapping[str, Question], rollouts: Iterable[Rollout], config: ShearConfig
) -> list[Question]:
    """One question a prefix of rollouts of mixed groups, that its rollout's problem goes on from; ids are problem,
    sample and position. `questions` are by problem.
    """
    return [
        replace(questions[rollout.group], id=name, prefix=list(rollout.token_ids[:position]))
        for name, rollout, _, position in _cut(rollouts, config)
    ]


def prefix_rows(rollouts: Iterable[Rollout], completions: Iterable[Completion], config: ShearConfig) -> list[Prefix]:
    """The table of the analyses, of measured rollouts of mixed groups and the graded completions of their prefixes."""
    judged: dict[str, list[Completion]] = defaultdict(list)
    for completion in completions:
        if completion.verdict is not None and completion.verdict.correct is not None:
            judged[completion.question].append(completion)
    return [
        Prefix(
            problem=rollout.group,
            sample=rollout.sample,
            correct=rollout.correct,
            position=position,
            tokens=len(rollout.tokens),
            distance=rollout.span_distances[span],
            omega=rollout.weights[position - 1],
            completions=len(judged[name]),
            successes=sum(completion.verdict.correct for completion in judged[name]),
            truncated=sum(completion.truncated for completion in judged[name]),
            **{
                f"{control}_distance": (getattr(rollout, column) or {span: math.nan})[span]
                for control, column in CONTROL_COLUMNS.items()
            },
        )
        for name, rollout, span, position in _cut(rollouts, config)
    ]


def _cut(rollouts: Iterable[Rollout], config: ShearConfig) -> Iterator[tuple[str, Rollout, int, int]]:
    """Of every prefix its id, its rollout, which span its window is, and its position."""
    for rollout in rollouts:
        if rollout.correct is not None:
            for span, position in enumerate(positions(len(rollout.tokens), rollout.answer_start, config)):
                yield f"{rollout.group}/{rollout.sample}/{position}", rollout, span, position
