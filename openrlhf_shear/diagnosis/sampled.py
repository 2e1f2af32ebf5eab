"""From completions, as an evaluation keeps them, to rollouts and groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from openrlhf_shear.diagnosis.measure import Group
from openrlhf_shear.rollouts.answers import answer_start
from openrlhf_shear.rollouts.first_error import first_error_token
from openrlhf_shear.rollouts.record import Rollout
from openrlhf_shear.rollouts.tokens import token_texts
from openrlhf_shear.sampling.plan import Plan
from openrlhf_shear.sampling.records import Completion, Question
from openrlhf_shear.sampling.sampler import prompt_ids


def sampled_rollouts(
    questions: Iterable[Question], completions: Iterable[Completion], tokenizer, chat: bool
) -> list[Rollout]:
    """Of every completion that was sampled, in the order of the questions; advantages are those of `group_norm`."""
    by_question: dict[str, list[Completion]] = {}
    for completion in completions:
        if completion.token_ids:
            by_question.setdefault(completion.question, []).append(completion)
    rollouts = []
    for question in questions:
        found = by_question.get(question.id, [])
        prompt = tokenizer.decode(prompt_ids(tokenizer, question, chat))
        for completion, advantage in zip(found, _advantages(found), strict=True):
            tokens = token_texts(tokenizer, completion.token_ids)
            correct = completion.verdict.correct
            rollouts.append(
                Rollout(
                    group=question.id,
                    sample=completion.sample,
                    prompt=prompt,
                    label=question.label,
                    correct=correct,
                    reward=None if correct is None else float(correct),
                    advantage=advantage,
                    truncated=completion.truncated,
                    tokens=tokens,
                    token_ids=completion.token_ids,
                    answer_start=answer_start(tokens),
                    first_error=first_error_token(prompt, tokens),
                )
            )
    return rollouts


def _advantages(completions: Sequence[Completion]) -> list[float | None]:
    known = torch.tensor([float(c.verdict.correct) for c in completions if c.verdict.correct is not None])
    if len(known) < 2 or known.std() == 0:
        return [None if c.verdict.correct is None else 0.0 for c in completions]
    mean, std = known.mean().item(), known.std().item()
    return [None if c.verdict.correct is None else (c.verdict.correct - mean) / std for c in completions]


def groups_of(rollouts: Iterable[Rollout], problems: Plan, tokenizer) -> list[Group]:
    """By problem, as the policy is to read them."""
    by_name: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        by_name.setdefault(rollout.group, []).append(rollout)
    prompts = {question.id: tuple(prompt_ids(tokenizer, question, problems.chat)) for question in problems.questions}
    return [
        Group(
            name,
            prompts=(prompts[name],) * len(members),
            responses=tuple(tuple(member.token_ids) for member in members),
            correct=tuple(member.correct for member in members),
        )
        for name, members in by_name.items()
    ]
