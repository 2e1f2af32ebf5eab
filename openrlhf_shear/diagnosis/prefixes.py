"""Prefixes of rollouts: their positions, the questions that continue them, and the table that the analyses read."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pandas

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.rollouts.columns import CONTROL_COLUMNS
from openrlhf_shear.rollouts.record import Rollout, float64, read_table, write_table
from openrlhf_shear.sampling.records import Completion, Question
from openrlhf_shear.transport import span_starts

KIND = "prefixes"


@dataclass(frozen=True)
class Prefix:
    """The first `position` tokens of a rollout of a mixed group; its window holds no token of the final answer."""

    # problem, sample: which rollout; `group` and `sample` in rollouts.parquet
    problem: str
    sample: int
    correct: bool  # the outcome of the whole rollout
    position: int  # tokens, at least the window
    tokens: int  # of the whole rollout
    # from the last `window` tokens to the nearest opposing span, in units of nbar; infinite where not measurable
    distance: float64
    omega: float  # the weight of the prefix's last token
    completions: int  # number with a verdict; may be 0
    successes: int  # number of correct completions
    truncated: int = 0  # number that ended at the token limit
    # like `distance`, for the controls of `credit.rule.CONTROLS`; NaN where they were not measured
    same_distance: float64 = math.nan
    permuted_distance: float64 = math.nan


def write_prefixes(path: str | Path, prefixes: Iterable[Prefix], settings: Mapping) -> Path:
    """Write prefixes; `settings` are JSON values.

    They hold at least `model`, `dataset`, `window`, `stride`, `samples_per_prompt` and `completions` (requested for
    each prefix).
    """
    return write_table(path, KIND, Prefix, prefixes, settings)


def read_prefixes(path: str | Path) -> tuple[pandas.DataFrame, dict]:
    """Return a frame of prefixes and their settings; TableError for another kind or version of file.

    The columns are those of `Prefix` and `accuracy`: successes over completions, in [0, 1], NaN without completions.
    Rows are in the order problem, sample, position.
    """
    table, settings = read_table(path, KIND)
    frame = table.to_pandas()
    frame["accuracy"] = frame["successes"] / frame["completions"]
    return frame.sort_values(["problem", "sample", "position"], ignore_index=True), settings


def positions(tokens: int, answer: int | None, config: ShearConfig) -> list[int]:
    """Return the lengths of the prefixes of a response: the window, then a stride more each, up to the answer.

    The whole response is not a prefix. The j-th prefix ends with span j of the response.

    >>> positions(10, None, ShearConfig(window=4, stride=3)), positions(10, 6, ShearConfig(window=4, stride=3))
    ([4, 7], [4])
    """
    last = tokens - 1 if answer is None else min(tokens - 1, answer)
    starts = span_starts(tokens, config).tolist()
    return [start + config.window for start in starts if start + config.window <= last]


def prefix_questions(
    questions: Mapping[str, Question], rollouts: Iterable[Rollout], config: ShearConfig
) -> list[Question]:
    """Return a question for each prefix of rollouts of mixed groups: the rollout's problem with the prefix.

    Their ids are problem, sample and position. `questions` are by problem.
    """
    return [
        replace(questions[rollout.group], id=name, prefix=list(rollout.token_ids[:position]))
        for name, rollout, _, position in _cut(rollouts, config)
    ]


def prefix_rows(rollouts: Iterable[Rollout], completions: Iterable[Completion], config: ShearConfig) -> list[Prefix]:
    """Return the analyses' table from measured rollouts of mixed groups and graded completions of their prefixes."""
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
    """Yield the id, rollout, index of its window's span, and position of every prefix."""
    for rollout in rollouts:
        if rollout.correct is not None:
            for span, position in enumerate(positions(len(rollout.tokens), rollout.answer_start, config)):
                yield f"{rollout.group}/{rollout.sample}/{position}", rollout, span, position
