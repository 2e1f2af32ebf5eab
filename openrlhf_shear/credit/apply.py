"""From a step's groups to token advantages. Legend: T_i response tokens of rollout i, its index within the step."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from openrlhf_shear.credit.checks import checked_credit, checked_over_batch
from openrlhf_shear.credit.rule import CREDIT_TENSORS, Credit, CreditRule, GroupCredit, RolloutGroup


@dataclass(frozen=True)
class TokenCredit:
    """One rollout's, (T_i,) each."""

    base: torch.Tensor  # advantages before the rule
    advantages: torch.Tensor  # after it, as trained on
    weights: torch.Tensor | None  # their ratio, but for what is added; None for a rule that makes its own advantages


def weighed(rule: CreditRule, group: RolloutGroup, rollouts: Sequence[int]) -> tuple[GroupCredit, Credit]:
    """A group's credit, on the CPU, and what the rule gave, on its device; `rollouts` are the group's, in its order.
    Raises CreditRuleError: the rule failed (`checked_credit`).
    """
    started = time.perf_counter()
    credit = checked_credit(rule, group)
    # waits for the device: the time is whole
    tensors = {name: tuple(values.float().cpu() for values in rows) for name, rows in credit.tensors().items()}
    seconds = time.perf_counter() - started
    return GroupCredit(tuple(rollouts), group.rewards, group.correct, credit.metrics, seconds, **tensors), credit


def token_advantages(
    rule: CreditRule,
    groups: Sequence[GroupCredit],
    base: Mapping[int, torch.Tensor],
    failed: Collection[int] = (),
    added: Mapping[int, torch.Tensor] | None = None,
) -> dict[int, TokenCredit]:
    """A step's token advantages by rollout: `base` times the rule's weights, or the rule's own in their place.

    Worked example: base -1, -1 of a rollout and weights 2, 0 -> advantages -2, 0; with 0.1, 0.1 added, -1.9, 0.1.

    Args:
        groups: all of the step.
        base: (T_i,) of each rollout, any float dtype; results have it too.
        failed: rollouts without a reward: no part of `over_batch`, and 0 where the rule made advantages for them.
        added: (T_i,) float64 of each rollout, what no weight is for (a KL reward); a rule's own advantages replace it.

    Raises CreditRuleError: the rule's `over_batch` failed.
    """
    tensors: dict[str, dict[int, torch.Tensor]] = {name: {} for name in CREDIT_TENSORS}
    for group in groups:
        for name, rows in group.tensors().items():
            tensors[name].update(zip(group.rollouts, rows, strict=True))
    if rule.makes_advantages:
        made = tensors["advantages"]
        rated = [i for i in sorted(made) if i not in failed]
        made.update(zip(rated, checked_over_batch(rule, [made[i] for i in rated]), strict=True))
        made.update({i: torch.zeros_like(made[i]) for i in made if i in failed})
        return {i: TokenCredit(values, made[i].float().cpu().to(values.dtype), None) for i, values in base.items()}
    credited = {}
    for i, values in base.items():
        weights, negative = tensors["weights"][i], tensors["negative_weights"].get(i)
        if negative is not None:
            weights = torch.where(values < 0, negative, weights)
        weighted = values * weights
        if added is not None:  # in float64, so that weights of 1 give the unweighed advantages, bit for bit
            weighted = values.double() * weights + added[i]
        credited[i] = TokenCredit(values, weighted.to(values.dtype), weights)
    return credited
