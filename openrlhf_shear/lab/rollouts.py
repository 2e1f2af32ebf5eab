"""Sampled groups of rollouts with known outcomes and first errors, and what a rule asks for beyond their reading.

Legend: N = P x G rollouts of P problems, group after group; S positions; T_i response tokens of rollout i.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.utils.rnn import pad_sequence

from openrlhf_shear.lab.policy import Policy
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.tasks import Problem, Task, task_of
from openrlhf_shear.tasks.arithmetic.sampling import continue_ids, sample_ids

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


@dataclass(frozen=True)
class Models:
    """Models and task from which the inputs beyond one reading are made."""

    policy: Policy
    reference: Policy | None  # the start policy; None if no rule asks for it
    task: Task


@torch.no_grad()
def further_inputs(
    needs: Collection[str], models: Models, problems: Sequence[Problem], rollouts: Rollouts, seed: int
) -> dict[str, object]:
    """Return by name the needs that a reading of the rollouts does not hold: N rows, or an object of the policy.

    Args:
        problems: of each group.
        seed: of the continuations.
    """
    makers = {
        "ref_log_probs": lambda: _log_probs(models.reference, rollouts.sequences, rollouts.mask),
        "hint_log_probs": lambda: hint_log_probs(models.policy, rollouts),
        "turns": lambda: [torch.zeros(length, dtype=torch.int64) for length in rollouts.lengths],
        "lm_head": lambda: models.policy.lm_head,
        "continuations": lambda: continuations(models, problems, rollouts, seed),
    }
    return {name: make() for name, make in makers.items() if name in needs}


def hint_log_probs(policy: Policy, rollouts: Rollouts) -> list[torch.Tensor]:
    """Return the tokens' log-probs after a hint: N of (T_i,) float32.

    The policy reads the prompt and the response of another rollout of the group, then the prompt and the response. The
    other rollout is the next correct one, in a circle. Without one the policy reads the rollout alone.
    """
    rows, hints = _rows(rollouts), []
    for group in rollouts.groups:
        members = range(group.start, group.stop)
        for i in members:
            circle = [*members[i - group.start + 1 :], *members[: i - group.start]]
            hints.append(next((j for j in circle if rollouts.correct[j]), None))
    hinted = [row if j is None else torch.cat([rows[j], row]) for row, j in zip(rows, hints, strict=True)]
    sequences = pad_sequence(hinted, batch_first=True, padding_value=rollouts.tokenizer.pad_token_id)
    ends, lengths = (torch.tensor(each)[:, None] for each in ([len(row) for row in hinted], rollouts.lengths))
    position = torch.arange(1, sequences.shape[1])
    mask = (position >= ends - lengths) & (position < ends)
    return _log_probs(policy, sequences, mask)


def continuations(
    models: Models, problems: Sequence[Problem], rollouts: Rollouts, seed: int
) -> Callable[[Sequence[tuple[int, int]], int], list[float]]:
    """Return a function that continues rollouts from places (rollout, t), after the first t response tokens.

    It returns the mean reward of n continuations of each place, sampled from the policy at temperature 1. A place after
    all tokens has the rollout's own reward. The same places get the same random numbers again; they are others than
    those of the rollouts, which have the seed itself, and than those of another group.
    """

    rows = _rows(rollouts)
    starts = [len(row) - length for row, length in zip(rows, rollouts.lengths, strict=True)]

    def values(places: Sequence[tuple[int, int]], n: int) -> list[float]:
        unfinished = [(i, t) for i, t in dict.fromkeys(places) if t < rollouts.lengths[i]]
        prompts = [rows[i][: starts[i] + t].tolist() for i, t in unfinished for _ in range(n)]
        room = [models.task.budget - t for _, t in unfinished for _ in range(n)]
        own = seed + ((unfinished[0][0] + 1) << 32) if unfinished else seed
        ends = iter(continue_ids(models.policy.model, rollouts.tokenizer, prompts, room, own))
        known = {}
        for i, t in unfinished:
            problem, begun = problems[i // rollouts.group_size], rows[i][starts[i] :][:t]
            whole = (torch.cat([begun, next(ends)]) for _ in range(n))
            known[i, t] = sum(models.task.check(rollouts.tokenizer, problem, ids).correct for ids in whole) / n
        return [known.get((i, t), float(rollouts.correct[i])) for i, t in places]

    return values


def _rows(rollouts: Rollouts) -> list[torch.Tensor]:
    """Return prompts and responses without padding: N of (S_i,) int64."""
    ends = (int(mask.nonzero()[-1]) + 2 for mask in rollouts.mask)
    return [sequence[:end] for sequence, end in zip(rollouts.sequences, ends, strict=True)]


def _log_probs(policy: Policy, sequences: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    log_probs = policy.read(sequences, mask).log_probs
    return [row[keep] for row, keep in zip(log_probs, mask, strict=True)]
