"""From a step's rollouts to token advantages, by the rules of training: `credit.apply`, as in training, and controls.

Legend: N = P x G rollouts; T_i response tokens of rollout i.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from openrlhf_shear.credit.apply import token_advantages, weighed
from openrlhf_shear.credit.baselines import group_advantages
from openrlhf_shear.credit.registry import Rule
from openrlhf_shear.credit.rule import CreditRule, UpdateRule, means
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


def credited(rule: Rule, control: str | None, rollouts: Rollouts, reading: Reading, seed: int) -> StepCredit:
    """The token advantages of a step.

    Args:
        control: one of `CONTROLS`, in place of the rule's own advantages.
        reading: of the policy that sampled.
        seed: of the shuffle.

    Raises:
        CreditRuleError: the rule failed.
    """
    rewards = torch.tensor(rollouts.correct, dtype=torch.float32)
    base = tuple(group_advantages(rewards, rollouts.group_size).tolist())
    plain = [torch.full((length,), value) for length, value in zip(rollouts.lengths, base, strict=True)]
    if isinstance(rule, UpdateRule):
        return StepCredit(base, plain, 0.0, {})
    started = time.perf_counter()
    step = [
        weighed(rule, group, range(members.start, members.stop))[0]
        for group, members in zip(groups(rule, rollouts, reading), rollouts.groups, strict=True)
    ]
    credits = token_advantages(rule, step, dict(enumerate(plain)))
    advantages = [credits[i].advantages for i in range(len(plain))]
    seconds = time.perf_counter() - started
    if control:
        advantages = CONTROLS[control](advantages, base, seed)
    return StepCredit(base, advantages, seconds, means([group.metrics for group in step]))


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
            **{name: tuple(values[group]) for name, values in wanted.items() if name in rule.needs},
        )
        for number, group in enumerate(rollouts.groups)
    ]


def _of_responses(values: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    return [row[keep].detach() for row, keep in zip(values, mask, strict=True)]
