"""The groups of rollouts that a diagnosis measures, made from the completions of problems."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from openrlhf_shear.credit.baselines import group_advantages
from openrlhf_shear.rollouts.columns import token_columns
from openrlhf_shear.rollouts.record import Rollout, is_mixed
from openrlhf_shear.sampling.plan import Plan
from openrlhf_shear.sampling.records import Completion
from openrlhf_shear.sampling.sampler import question_ids
from openrlhf_shear.tasks.arithmetic import arithmetic


@dataclass(frozen=True)
class SampledGroup:
    """The rollouts of one problem; `prompt` is the token ids that the policy reads before each response."""

    prompt: Sequence[int]
    rollouts: Sequence[Rollout]

    @property
    def name(self) -> str:
        return self.rollouts[0].group

    @property
    def correct(self) -> tuple[bool | None, ...]:
        """By rollout; None without a verdict."""
        return tuple(rollout.correct for rollout in self.rollouts)

    @property
    def mixed(self) -> bool:
        return is_mixed(self.rollouts)


def sampled_groups(problems: Plan, completions: Iterable[Completion], tokenizer) -> list[SampledGroup]:
    """Return the groups of all sampled completions, in the order of the questions; advantages as by `group_norm`."""
    by_question: dict[str, list[Completion]] = {}
    for completion in completions:
        if completion.token_ids:
            by_question.setdefault(completion.question, []).append(completion)
    groups = []
    for question in problems.questions:
        answers = by_question.get(question.id, [])
        ids = question_ids(tokenizer, question, problems.prompt_format)
        prompt = tokenizer.decode(ids)
        rollouts = [
            Rollout(
                group=question.id,
                sample=completion.sample,
                prompt=prompt,
                label=str(question.label),
                correct=completion.verdict.correct,
                reward=None if completion.verdict.correct is None else float(completion.verdict.correct),
                advantage=advantage,
                truncated=completion.truncated,
                **token_columns(tokenizer, prompt, completion.token_ids, arithmetic.first_error),
            )
            for completion, advantage in zip(answers, _advantages(answers), strict=True)
        ]
        if rollouts:
            groups.append(SampledGroup(ids, rollouts))
    return groups


def _advantages(completions: Sequence[Completion]) -> list[float | None]:
    """Return the advantages that training gives these rollouts; None without a verdict."""
    failed = torch.tensor([completion.verdict.correct is None for completion in completions])
    rewards = torch.tensor([float(completion.verdict.correct or 0) for completion in completions])
    advantages = group_advantages(rewards, len(completions), failed=failed).tolist()
    return [None if out else advantage for out, advantage in zip(failed.tolist(), advantages, strict=True)]
