"""From a step's rollouts to token advantages, by the rules of training: what `fork.experience_maker` does, in process.

Legend: N = P x G rollouts; T_i response tokens of rollout i.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from openrlhf_shear.credit.failed_rewards import baselined
from openrlhf_shear.credit.in_update import means
from openrlhf_shear.credit.rule import CreditRule, UpdateRule, checked_credit, checked_over_batch
from openrlhf_shear.credit.weights import weights_in_effect
from openrlhf_shear.lab.controls import CONTROLS
from openrlhf_shear.lab.oracles import KnownGroup
from openrlhf_shear.lab.policy import Reading
from openrlhf_shear.lab.rollouts import Rollouts


@dataclass(frozen=True)
class StepCredit:
    """
    Attributes:
        base: N group-normalised advantages, before any rule.
        advantages: N of (T_i,) float32.
        seconds: of the rule.
        metrics: the rule's own, means over the groups that have them.
    """

    base: tuple[float, ...]
    advantages: list[torch.Tensor]
    seconds: float
    metrics: dict[str, float]


def needs(rule: CreditRule | UpdateRule) -> frozenset[str]:
    """What of a forward pass it reads; a rule that acts in the update gets what it needs there."""
    return getattr(rule, "needs", frozenset())


def group_advantages(correct: tuple[bool, ...], group_size: int) -> tuple[float, ...]:
    """GRPO's advantages, (reward - mean) / (std + 1e-9) within a group, as OpenRLHF's `group_norm`; exactly 0 where
    all rewards are alike, as in training (`credit.failed_rewards`).
    """
    rewards = torch.tensor(correct, dtype=torch.float32).view(-1, group_size)
    alike = (rewards == rewards[:, :1]).all(1, keepdim=True)
    return tuple(torch.where(alike, 0.0, baselined(rewards, "group_norm")).flatten().tolist())


def credited(
    rule: CreditRule | UpdateRule,
    control: str | None,
    rollouts: Rollouts,
    reading: Reading,
    seed: int,
) -> StepCredit:
    """The token advantages of a step.

    Args:
        control: one of `CONTROLS`, in place of the rule's own advantages.
        reading: of the policy that sampled.
        seed: of the shuffle.

    Raises:
        CreditRuleError: the rule failed.
    """
    base = group_advantages(rollouts.correct, rollouts.group_size)
    plain = [torch.full((length,), value) for length, value in zip(rollouts.lengths, base, strict=True)]
    if isinstance(rule, UpdateRule):
        return StepCredit(base, plain, 0.0, {})
    started = time.perf_counter()
    made, metrics = [], []
    for group in groups(rule, rollouts, reading):
        credit = checked_credit(rule, group)
        metrics.append(credit.metrics)
        if rule.makes_advantages:
            made += _on_cpu(credit.advantages)
            continue
        weights = _on_cpu(credit.weights)
        negative = [None] * len(weights) if credit.negative_weights is None else _on_cpu(credit.negative_weights)
        for weight, below in zip(weights, negative, strict=True):
            advantages = plain[len(made)]
            made.append(advantages * weights_in_effect(advantages, weight, below))
    if rule.makes_advantages:
        made = _on_cpu(checked_over_batch(rule, made))
    seconds = time.perf_counter() - started
    return StepCredit(base, CONTROLS[control](made, base, seed) if control else made, seconds, means(metrics))


def groups(rule: CreditRule, rollouts: Rollouts, reading: Reading) -> list[KnownGroup]:
    """What the rule sees, group by group."""
    wanted = {
        "hidden_states": reading.states,
        "log_probs": _of_responses(reading.log_probs, rollouts.mask),
        "entropies": _of_responses(reading.entropies, rollouts.mask),
        "first_errors": rollouts.first_errors,
    }
    return [
        KnownGroup(
            number,
            tuple(float(outcome) for outcome in rollouts.correct[group]),
            rollouts.correct[group],
            rollouts.lengths[group],
            **{name: tuple(values[group]) for name, values in wanted.items() if name in needs(rule)},
        )
        for number, group in enumerate(rollouts.groups)
    ]


def _on_cpu(rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [row.float().cpu() for row in rows]


def _of_responses(values: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    return [row[keep].detach() for row, keep in zip(values, mask, strict=True)]
