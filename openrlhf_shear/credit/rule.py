"""What a credit rule is: pure functions that turn a rollout's advantage into token advantages.

Nothing of a rule knows Ray, DeepSpeed or vLLM. There are two kinds, by when they act.

`CreditRule`, while experience is made: one group of rollouts in, a weight for every response token out. It runs on the
policy actor, on its device, right after the forward pass in which the group's hidden states were caught, and before any
update. OpenRLHF's `group_norm` advantages are then multiplied, token by token, by its weights.

`UpdateRule`, in the update: the advantages of a micro-batch and the *current* policy's entropies in, advantages out.

The smallest rules are `uniform.py` and `entropy_adv.py`; `examples/rules/surprise_rule.py` is from outside the package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

NEEDS = ("hidden_states", "log_probs")


@dataclass(frozen=True)
class RolloutGroup:
    """G rollouts of one prompt. Tuples are by rollout, T_i is the number of response tokens of rollout i.

    Attributes:
        number: which group of the step this is, from 0; for messages.
        rewards: G scores, before any length penalty. NaN where a reward failed.
        correct: G outcomes, a score at or above `--shear.correct_threshold`; None where a reward failed.
        lengths: T_i.
        hidden_states: (T_i, d) each, float32 or bfloat16: what enters the LM head at the token's own position. None
            unless the rule needs "hidden_states".
        log_probs: (T_i,) each, float32 on the CPU, of the sampled tokens. None unless the rule needs "log_probs".
    """

    number: int
    rewards: tuple[float, ...]
    correct: tuple[bool | None, ...]
    lengths: tuple[int, ...]
    hidden_states: tuple[torch.Tensor, ...] | None = None
    log_probs: tuple[torch.Tensor, ...] | None = None


@dataclass(frozen=True)
class Credit:
    """What a rule says of a group.

    Attributes:
        weights: G tensors (T_i,), finite, on any device. A token's advantage is multiplied by its weight, so weights
            that are not negative keep every sign.
        metrics: numbers about this group; their means over a step's groups are logged as `RULE/NAME`.
    """

    weights: Sequence[torch.Tensor]
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupCredit:
    """A group's credit as it leaves the actor."""

    rollouts: tuple[int, ...]  # index within the step's rollouts
    correct: tuple[bool | None, ...]
    weights: tuple[torch.Tensor, ...]  # (T_i,) float32 on the CPU
    metrics: dict[str, float]
    seconds: float


class CreditRule(ABC):
    """A rule. It is made once in the driver, to find mistakes early, and once on every policy actor.

    Attributes:
        name: before the slash of its metrics, and in messages.
        needs: what of `NEEDS` the groups must hold; hidden states cost memory, one group's at a time.
    """

    name: str = "rule"
    needs: frozenset[str] = frozenset()

    @abstractmethod
    def credit(self, group: RolloutGroup) -> Credit:
        """The weights of one group. Must not change its arguments, and must give the same for the same group."""

    def summarize(self, groups: Sequence[GroupCredit]) -> dict[str, float]:
        """The metrics of one step from those of its groups, without the rule's name: means, and the weights' range."""
        names = {name for group in groups for name in group.metrics}
        found = {name: [group.metrics[name] for group in groups if name in group.metrics] for name in sorted(names)}
        weights = torch.cat([weight for group in groups for weight in group.weights] or [torch.ones(1)])
        means = {name: sum(values) / len(values) for name, values in found.items()}
        if not len(weights):
            return means
        return means | {
            "weight_mean": weights.mean().item(),
            "weight_min": weights.min().item(),
            "weight_max": weights.max().item(),
        }


class UpdateRule(ABC):
    """A rule that acts in the update, on every micro-batch, right before OpenRLHF's policy loss.

    Micro-batches don't keep the rollouts of a group together.

    Attributes:
        name: before the slash of its metrics, and in messages.
    """

    name: str = "rule"

    @abstractmethod
    def advantages(
        self, advantages: torch.Tensor, entropies: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The advantages to use, and metrics of the micro-batch.

        Args:
            advantages: (B, A) float32, OpenRLHF's `group_norm`.
            entropies: (B, A) float32, nats, of the current policy over the whole vocabulary, without a gradient.
            mask: (B, A) bool, the response tokens.
        """


class CreditRuleError(RuntimeError):
    """A rule raised, or gave something that is no credit of its group; the message names the rule and the group."""


def checked_advantages(
    rule: UpdateRule, advantages: torch.Tensor, entropies: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, dict[str, float]]:
    """`rule.advantages(...)`.

    Raises:
        CreditRuleError: it raised, or gave advantages of another shape or that are not finite.
    """
    where = f"credit rule {rule.name} ({type(rule).__module__}:{type(rule).__qualname__}), in the update"
    try:
        shaped, metrics = rule.advantages(advantages, entropies, mask)
    except Exception as error:
        raise CreditRuleError(f"{where}: it raised {type(error).__name__}: {error}") from error
    if not isinstance(shaped, torch.Tensor) or shaped.shape != advantages.shape:
        got = tuple(shaped.shape) if isinstance(shaped, torch.Tensor) else type(shaped).__name__
        raise CreditRuleError(f"{where}: advantages must be a tensor {tuple(advantages.shape)}: got {got}")
    if not torch.isfinite(shaped[mask]).all():
        raise CreditRuleError(f"{where}: {int((~torch.isfinite(shaped[mask])).sum())} advantages are NaN or infinite")
    return shaped, metrics


def checked_credit(rule: CreditRule, group: RolloutGroup) -> Credit:
    """`rule.credit(group)`.

    Raises:
        CreditRuleError: it raised, gave another number of weights or another shape, or a weight that is not finite.
    """
    where = f"credit rule {rule.name} ({type(rule).__module__}:{type(rule).__qualname__}), group {group.number}"
    try:
        credit = rule.credit(group)
    except Exception as error:
        raise CreditRuleError(f"{where}: it raised {type(error).__name__}: {error}") from error
    if not isinstance(credit, Credit):
        raise CreditRuleError(f"{where}: credit() must return a Credit: got {type(credit).__name__}")
    if len(credit.weights) != len(group.lengths):
        raise CreditRuleError(f"{where}: {len(group.lengths)} rollouts need as many weights: got {len(credit.weights)}")
    for i, (weight, length) in enumerate(zip(credit.weights, group.lengths, strict=True)):
        if not isinstance(weight, torch.Tensor) or tuple(weight.shape) != (length,):
            got = tuple(weight.shape) if isinstance(weight, torch.Tensor) else type(weight).__name__
            raise CreditRuleError(f"{where}: the weights of rollout {i} must be a tensor ({length},): got {got}")
        if not torch.isfinite(weight).all():
            bad = int((~torch.isfinite(weight)).sum())
            raise CreditRuleError(f"{where}: {bad} of {length} weights of rollout {i} are NaN or infinite")
    return credit
