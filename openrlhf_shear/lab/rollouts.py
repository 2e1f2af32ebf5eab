"""Sampled groups of rollouts with known outcomes and first errors.

Legend: N = P x G rollouts of P problems, group after group; S positions; T_i response tokens of rollout i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.utils.rnn import pad_sequence

from openrlhf_shear.lab.policy import Policy
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.tasks import Problem, Task, task_of
from openrlhf_shear.tasks.arithmetic.sampling import sample_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Rollouts:
    """Rollouts of a step."""

    sequences: torch.Tensor  # (N, S) int64, prompt and response, padded on the right
    mask: torch.Tensor  # (N, S - 1) bool: whether the token at position j + 1 is a response token; <eos> is one too
    lengths: tuple[int, ...]  # T_i
    correct: tuple[bool, ...]  # whether the final answer is right
    first_errors: tuple[int | None, ...]  # index of the first wrong response token, at most T_i; None without an error
    group_size: int  # G
    tokenizer: PreTrainedTokenizerBase

    @property
    def groups(self) -> list[slice]:
        """The rollouts of each problem."""
        return [slice(at, at + self.group_size) for at in range(0, len(self.lengths), self.group_size)]

    @property
    def mixed(self) -> float:
        """Fraction of the groups that have both outcomes."""
        return sum(len(set(self.correct[group])) == 2 for group in self.groups) / len(self.groups)

    @property
    def accuracy(self) -> float:
        return sum(self.correct) / len(self.correct)


def sample(
    policy: Policy,
    problems: Sequence[Problem],
    group_size: int,
    settings: LabSettings,
    seed: int,
    temperature: float = 1.0,
) -> Rollouts:
    """Sample `group_size` rollouts a problem; the same weights and seed give the same rollouts.

    Raises ValueError where the policy is of another task: its tokenizer would drop parts of the prompts.
    """
    repeated = [problem for problem in problems for _ in range(group_size)]
    task = task_of(settings)
    prompts = [problem.prompt for problem in repeated]
    read = policy.tokenizer.decode(policy.tokenizer.encode(prompts[0], add_special_tokens=False))
    if read != prompts[0]:
        raise ValueError(
            f"lab.start: the policy reads the prompt {prompts[0]} as {read}; use one that was warmed up for "
            f"{task.about}"
        )
    options = {"max_new_tokens": task.budget, "temperature": temperature}
    responses = sample_ids(policy.model, policy.tokenizer, prompts, seed, **options)
    return graded(task, policy.tokenizer, repeated, responses, group_size)


def graded(
    task: Task, tokenizer, problems: Sequence[Problem], responses: Sequence[torch.Tensor], group_size: int
) -> Rollouts:
    """Return rollouts from response tokens (T_i,), one response for each problem."""
    checks = [task.check(tokenizer, problem, ids) for problem, ids in zip(problems, responses, strict=True)]
    prompts = [torch.tensor(tokenizer.encode(problem.prompt, add_special_tokens=False)) for problem in problems]
    rows = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    sequences = pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    starts, ends = (torch.tensor([len(part) for part in parts])[:, None] for parts in (prompts, rows))
    position = torch.arange(1, sequences.shape[1])
    return Rollouts(
        sequences,
        (position >= starts) & (position < ends),
        tuple(len(ids) for ids in responses),
        tuple(result.correct for result in checks),
        tuple(result.first_error for result in checks),
        group_size,
        tokenizer,
    )
