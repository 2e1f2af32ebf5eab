"""Whole groups out of micro-batches: collect a group's hidden states, weigh its tokens, keep only the weights.

Plain PyTorch, so that it is tested without Ray; the policy actor owns one `GroupCollector` and moves data.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit.shear import shear_weights


@dataclass(frozen=True)
class CreditRequest:
    """What the actor must know of one micro-batch. Row i of the micro-batch is rollout `rollouts[i]` of the step.

    Worked example: 2 prompts, 2 rollouts each, micro-batches of 2 -> the first request is
    CreditRequest(rollouts=(0, 1), groups=(0, 0), correct=(True, False), group_size=2).
    """

    rollouts: tuple[int, ...]  # index within the step's rollouts
    groups: tuple[int, ...]  # which prompt each one answers
    correct: tuple[bool | None, ...]  # None: not known, its reward failed; it weighs 1 and opposes nobody
    group_size: int  # rollouts a prompt


@dataclass(frozen=True)
class GroupCredit:
    """The token weights of one group, and the evidence its metrics need."""

    rollouts: tuple[int, ...]
    correct: tuple[bool | None, ...]
    weights: tuple[torch.Tensor, ...]  # (T_i,) float32 on the CPU
    opposed: bool  # correct and incorrect rollouts with finite hidden states were there
    mean_norm: float
    nonfinite: tuple[bool, ...]
    solved_fraction: float
    unconverged_fraction: float
    seconds: float


class GroupCollector:
    """Holds hidden states until a group is complete, then replaces them by token weights.

    Extra memory: the hidden states of the groups that are open. With groups dealt whole to a rank, and micro-batches
    in group order, that is one group and one micro-batch at most.
    """

    def __init__(self, config: ShearConfig):
        self._config = config
        self._open: dict[int, dict[int, tuple[torch.Tensor, bool | None]]] = {}
        self._done: list[GroupCredit] = []

    def add(self, request: CreditRequest, states: list[torch.Tensor]) -> None:
        """Take in one micro-batch.

        Args:
            request: which rollouts these are.
            states: one (T_i, d) tensor a rollout, on any device; the weights are computed there.
        """
        for rollout, group, correct, state in zip(
            request.rollouts, request.groups, request.correct, states, strict=True
        ):
            members = self._open.setdefault(group, {})
            members[rollout] = (state, correct)
            if len(members) == request.group_size:
                self._done.append(self._weigh(self._open.pop(group)))

    def take(self) -> list[GroupCredit]:
        """All finished groups, which are then forgotten.

        Raises:
            RuntimeError: a group is still incomplete, so its rollouts were spread over ranks or lost.
        """
        if self._open:
            sizes = {group: len(members) for group, members in self._open.items()}
            self._open.clear()
            raise RuntimeError(f"incomplete groups on this rank (group: rollouts seen): {sizes}")
        done, self._done = self._done, []
        return done

    def _weigh(self, members: dict[int, tuple[torch.Tensor, bool | None]]) -> GroupCredit:
        rollouts = tuple(sorted(members))
        states = [members[rollout][0] for rollout in rollouts]
        correct = tuple(members[rollout][1] for rollout in rollouts)
        if states[0].is_cuda:
            torch.cuda.synchronize(states[0].device)  # the forward pass is not the credit stage's time
        started = time.perf_counter()
        result = shear_weights(states, correct, self._config)
        weights = tuple(weight.cpu() for weight in result.weights)  # waits for the device, so the time below is whole
        return GroupCredit(
            rollouts=rollouts,
            correct=correct,
            weights=weights,
            opposed=result.opposed,
            mean_norm=result.mean_norm,
            nonfinite=tuple(result.nonfinite),
            solved_fraction=result.solved_fraction,
            unconverged_fraction=result.unconverged_fraction,
            seconds=time.perf_counter() - started,
        )


def step_metrics(groups: list[GroupCredit], seconds: float) -> dict[str, float]:
    """The `shear/...` metrics of one training step.

    Omega's statistics are over the response tokens of mixed groups, the only ones SHEAR acts on (elsewhere omega is
    1); they are left out of a step without a mixed group.

    Args:
        groups: every group of the step.
        seconds: wall-clock time of the credit stage, the slowest rank's.
    """
    mixed = [group for group in groups if group.opposed]
    metrics = {
        "shear/mixed_groups": len(mixed) / max(len(groups), 1),
        "shear/nonfinite_rollouts": float(sum(sum(group.nonfinite) for group in groups)),
        "shear/unconverged_fraction": sum(group.unconverged_fraction for group in mixed) / max(len(mixed), 1),
        "shear/unconverged_groups": float(sum(group.unconverged_fraction > 0 for group in mixed)),
        "shear/credit_seconds": seconds,
    }
    if not mixed:
        return metrics
    by_outcome = {
        outcome: torch.cat([w for g in mixed for w, c in zip(g.weights, g.correct, strict=True) if c == outcome])
        for outcome in (True, False)
    }
    omega = torch.cat(list(by_outcome.values()))
    metrics |= {
        "shear/solved_fraction": sum(group.solved_fraction for group in mixed) / len(mixed),
        "shear/mean_norm": sum(group.mean_norm for group in mixed) / len(mixed),
        "shear/omega_mean": omega.mean().item(),
        "shear/omega_max": omega.max().item(),
        "shear/omega_min": omega.min().item(),
        "shear/omega_correct": by_outcome[True].mean().item(),
        "shear/omega_incorrect": by_outcome[False].mean().item(),
    }
    return metrics
