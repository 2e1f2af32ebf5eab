"""What a diagnosis measures: groups of sampled rollouts, and prefixes of those in mixed groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.diagnosis.prefixes import Prefix
from openrlhf_shear.rollouts.record import Rollout
from openrlhf_shear.sampling.records import Completion, Question


@dataclass(frozen=True)
class Group:
    """The rollouts of one problem as a policy reads them; tuples are by rollout.

    Attributes:
        name: of the problem.
        prompts, responses: token ids.
        correct: None where no verdict could be made.
    """

    name: str
    prompts: tuple[tuple[int, ...], ...]
    responses: tuple[tuple[int, ...], ...]
    correct: tuple[bool | None, ...]

    @property
    def mixed(self) -> bool:
        return {True, False} <= set(self.correct)


def positions(tokens: int, answer: int | None, config: ShearConfig) -> range:
    """Lengths of the prefixes of a response: the window, and a stride more each, none with a token of the answer.

    A whole response is no prefix. The window that ends at `w + j s` is span j of the response.

    >>> list(positions(10, None, ShearConfig(window=4, stride=3)))
    [4, 7]
    >>> list(positions(10, 6, ShearConfig(window=4, stride=3)))
    [4]
    """
    last = tokens - 1 if answer is None else min(tokens - 1, answer)
    return range(config.window, last + 1, config.stride)


def prefix_questions(
    questions: Mapping[str, Question], rollouts: Iterable[Rollout], config: ShearConfig
) -> list[Question]:
    """One question a prefix, that its rollout's problem goes on from; ids are problem, sample and position.

    Args:
        questions: by problem.
        rollouts: of mixed groups.
    """
    return [
        replace(
            questions[rollout.group],
            id=prefix_id(rollout.group, rollout.sample, position),
            prefix=list(rollout.token_ids[:position]),
        )
        for rollout in rollouts
        if rollout.correct is not None
        for position in positions(len(rollout.tokens), rollout.answer_start, config)
    ]


def prefix_id(problem: str, sample: int, position: int) -> str:
    return f"{problem}/{sample}/{position}"


def prefix_rows(rollouts: Iterable[Rollout], completions: Iterable[Completion], config: ShearConfig) -> list[Prefix]:
    """The table of the analyses.

    Args:
        rollouts: of mixed groups, measured.
        completions: of the prefixes, graded.
    """
    judged: dict[str, list[Completion]] = {}
    for completion in completions:
        if completion.verdict is not None and completion.verdict.correct is not None:
            judged.setdefault(completion.question, []).append(completion)
    rows = []
    for rollout in rollouts:
        if rollout.correct is None or rollout.weights is None:
            continue
        for span, position in enumerate(positions(len(rollout.tokens), rollout.answer_start, config)):
            graded = judged.get(prefix_id(rollout.group, rollout.sample, position), [])
            rows.append(
                Prefix(
                    problem=rollout.group,
                    sample=rollout.sample,
                    correct=rollout.correct,
                    position=position,
                    tokens=len(rollout.tokens),
                    distance=rollout.span_distances[span],
                    omega=rollout.weights[position - 1],
                    completions=len(graded),
                    successes=sum(completion.verdict.correct for completion in graded),
                    truncated=sum(completion.truncated for completion in graded),
                )
            )
    return rows
