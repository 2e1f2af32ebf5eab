"""What a credit rule is: pure functions that turn a rollout's advantage into token advantages.

Nothing of a rule knows Ray, DeepSpeed or vLLM. There are two kinds, by when they act.

`CreditRule`, while experience is made: one group of rollouts in, a weight for every response token out. It runs on the
policy actor, on its device, right after the forward pass in which the group's hidden states were caught, and before any
update. OpenRLHF's `group_norm` advantages are then multiplied, token by token, by its weights. A rule that has another
idea of the advantage itself gives advantages in place of weights.

`UpdateRule`, in the update: the advantages of a micro-batch and the *current* policy's entropies in, advantages out.

The smallest rules are `uniform.py` and `entropy_adv.py`; `examples/rules/surprise_rule.py` is from outside the package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from openrlhf_shear.credit.evidence import GroupEvidence

NEEDS = ("hidden_states", "log_probs", "entropies", "prm_scores")


@dataclass(frozen=True)
class StepScores:
    """What a process reward model says of one rollout, cut into steps (`credit.prm.steps`). K of its steps are scored.

    Attributes:
        ends: (K,) int64, ascending: the response token that ends step k, from 0.
        scores: (K,) float32: the probability that step k is right, in [0, 1].
        steps: how many the rollout has; more than K where it is too long for the model, which saw the first K.
    """

    ends: torch.Tensor
    scores: torch.Tensor
    steps: int

    @classmethod
    def of(cls, ends: Sequence[int], scores: Sequence[float]) -> StepScores:
        """From the ends of all steps and the scores of the first so many of them, which may be none."""
        known = torch.tensor(ends[: len(scores)], dtype=torch.int64)
        return cls(known, torch.tensor(scores, dtype=torch.float32), len(ends))


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
        entropies: (T_i,) each, float32, nats: of the distribution each token was drawn from, over the whole
            vocabulary. None unless the rule needs "entropies".
        prm_scores: `StepScores` on the CPU. None unless the rule needs "prm_scores" (and the run has `--prm.*`).
    """

    number: int
    rewards: tuple[float, ...]
    correct: tuple[bool | None, ...]
    lengths: tuple[int, ...]
    hidden_states: tuple[torch.Tensor, ...] | None = None
    log_probs: tuple[torch.Tensor, ...] | None = None
    entropies: tuple[torch.Tensor, ...] | None = None
    prm_scores: tuple[StepScores, ...] | None = None


CREDIT_TENSORS = ("weights", "negative_weights", "advantages")


@dataclass(frozen=True)
class Credit:
    """What a rule says of a group: weights, or advantages where its `makes_advantages` says so. Each of them is G
    tensors (T_i,), finite, on any device.

    Attributes:
        weights: a token's advantage is multiplied by its weight; weights that are not negative keep every sign.
        metrics: numbers about this group; their means over a step's groups are logged as `RULE/NAME`.
        negative_weights: for tokens whose advantage is negative, where these weigh differently.
        advantages: in place of OpenRLHF's.
    """

    weights: Sequence[torch.Tensor] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    negative_weights: Sequence[torch.Tensor] | None = None
    advantages: Sequence[torch.Tensor] | None = None


@dataclass(frozen=True)
class GroupCredit:
    """A group's credit as it leaves the actor; tensors are (T_i,) float32 on the CPU.

    Attributes:
        seconds: of the rule; `evidence_seconds` is apart, as it is asked for on few steps.
        evidence: where it was asked for and the rule has some.
    """

    rollouts: tuple[int, ...]  # index within the step's rollouts
    correct: tuple[bool | None, ...]
    metrics: dict[str, float]
    seconds: float
    weights: tuple[torch.Tensor, ...] | None = None
    negative_weights: tuple[torch.Tensor, ...] | None = None
    advantages: tuple[torch.Tensor, ...] | None = None
    evidence: GroupEvidence | None = None
    evidence_seconds: float = 0.0

    def tensors(self) -> dict[str, tuple[torch.Tensor, ...]]:
        """Those of the three that the rule gave, by name."""
        given = {name: getattr(self, name) for name in CREDIT_TENSORS}
        return {name: tensors for name, tensors in given.items() if tensors is not None}


class CreditRule(ABC):
    """A rule. It is made once in the driver, to find mistakes early, and once on every policy actor.

    Attributes:
        name: before the slash of its metrics, and in messages.
        needs: what of `NEEDS` the groups must hold; hidden states cost memory, one group's at a time, and PRM scores
            another model.
        makes_advantages: it gives advantages of its own in place of weights for OpenRLHF's. These then hold neither a
            KL reward nor a length penalty, which the command line refuses.
    """

    name: str = "rule"
    needs: frozenset[str] = frozenset()
    makes_advantages: bool = False

    @abstractmethod
    def credit(self, group: RolloutGroup) -> Credit:
        """The weights of one group. Must not change its arguments, and must give the same for the same group."""

    def evidence(self, group: RolloutGroup) -> GroupEvidence | None:
        """What there is to show of a group beyond its weights; asked for after `credit`, on the steps that
        `--shear.dump_rollouts_every` writes alone. Must not change its arguments.
        """
        return None

    def over_batch(self, advantages: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """For a rule that makes advantages: those of all rollouts of a step that have a reward, e.g. to whiten them.

        Args:
            advantages: (T_i,) float32 on the CPU each, in the order of the step's rollouts.
        """
        return advantages

    def summarize(self, groups: Sequence[GroupCredit]) -> dict[str, float]:
        """The metrics of one step from those of its groups, without the rule's name: means, and the weights' range."""
        names = {name for group in groups for name in group.metrics}
        found = {name: [group.metrics[name] for group in groups if name in group.metrics] for name in sorted(names)}
        metrics = {name: sum(values) / len(values) for name, values in found.items()}
        for name in CREDIT_TENSORS:
            given = [values for group in groups for values in group.tensors().get(name, ())]
            values = torch.cat(given) if given else torch.empty(0)
            if len(values):
                stem = name.removesuffix("s")
                metrics[f"{stem}_mean"] = values.mean().item()
                metrics[f"{stem}_min"], metrics[f"{stem}_max"] = values.min().item(), values.max().item()
        return metrics


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
        CreditRuleError: it raised, gave weights where it makes advantages or the reverse, another number of them or
            another shape, or a number that is not finite.
    """
    where = f"credit rule {rule.name} ({type(rule).__module__}:{type(rule).__qualname__}), group {group.number}"
    try:
        credit = rule.credit(group)
    except Exception as error:
        raise CreditRuleError(f"{where}: it raised {type(error).__name__}: {error}") from error
    if not isinstance(credit, Credit):
        raise CreditRuleError(f"{where}: credit() must return a Credit: got {type(credit).__name__}")
    given = {name for name in CREDIT_TENSORS if getattr(credit, name) is not None}
    wanted, optional = ({"advantages"}, set()) if rule.makes_advantages else ({"weights"}, {"negative_weights"})
    if not wanted <= given <= wanted | optional:
        raise CreditRuleError(
            f"{where}: with makes_advantages = {rule.makes_advantages} a Credit must have {', '.join(wanted)}: "
            f"got {', '.join(sorted(given)) or 'none'}"
        )
    for name in sorted(given):
        _check_tensors(where, name.replace("_", " "), getattr(credit, name), group.lengths)
    return credit


def checked_over_batch(rule: CreditRule, advantages: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """`rule.over_batch(advantages)`.

    Raises:
        CreditRuleError: it raised, or what it gave is no list of advantages of these rollouts.
    """
    where = f"credit rule {rule.name} ({type(rule).__module__}:{type(rule).__qualname__}), over the batch"
    try:
        made = rule.over_batch(advantages)
    except Exception as error:
        raise CreditRuleError(f"{where}: it raised {type(error).__name__}: {error}") from error
    _check_tensors(where, "advantages", made, [len(values) for values in advantages])
    return made


def _check_tensors(where: str, name: str, tensors: Sequence[torch.Tensor], lengths: Sequence[int]) -> None:
    if not isinstance(tensors, Sequence) or len(tensors) != len(lengths):
        got = len(tensors) if isinstance(tensors, Sequence) else type(tensors).__name__
        raise CreditRuleError(f"{where}: {len(lengths)} rollouts need as many {name}: got {got}")
    for i, (values, length) in enumerate(zip(tensors, lengths, strict=True)):
        if not isinstance(values, torch.Tensor) or tuple(values.shape) != (length,):
            got = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            raise CreditRuleError(f"{where}: the {name} of rollout {i} must be a tensor ({length},): got {got}")
        if not torch.isfinite(values).all():
            bad = int((~torch.isfinite(values)).sum())
            raise CreditRuleError(f"{where}: {bad} of {length} {name} of rollout {i} are NaN or infinite")
