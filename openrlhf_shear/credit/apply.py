"""From a rule to token advantages: of a step's groups, or in the update, between a policy's forward pass and its loss.

Legend: i index of a rollout within the step, T_i its response tokens.
Next: `credit.groups` collects whole groups on an actor; `train.experience.experience_maker` sends them there.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from openrlhf_shear.credit.checks import checked_advantages, checked_credits, checked_over_batch
from openrlhf_shear.credit.rule import CREDIT_TENSORS, Credit, CreditRule, GroupCredit, RolloutGroup, UpdateRule


@dataclass(frozen=True)
class TokenCredit:
    """Credit of one rollout's tokens, (T_i,) each."""

    base: torch.Tensor  # advantages before the rule
    advantages: torch.Tensor  # advantages after the rule, as trained on
    weights: torch.Tensor | None  # their ratio, without `added`; None for a rule that makes its own advantages


def weighed(
    rule: CreditRule, groups: Sequence[RolloutGroup], rollouts: Sequence[Sequence[int]]
) -> list[tuple[GroupCredit, Credit]]:
    """Return each group's credit, and the rule's result, with tensors on the CPU.

    Groups share the seconds evenly.

    Args:
        rollouts: by group, the indices of its rollouts within the step, in its order.

    Raises CreditRuleError: the rule failed (`checked_credits`).
    """
    started = time.perf_counter()
    credits = checked_credits(rule, groups)  # it waits for the device, so that the time includes its work
    seconds = (time.perf_counter() - started) / max(1, len(groups))
    return [
        (GroupCredit(tuple(own), group.rewards, group.correct, credit.metrics, seconds, **credit.tensors()), credit)
        for group, own, credit in zip(groups, rollouts, credits, strict=True)
    ]


def token_advantages(
    rule: CreditRule,
    groups: Sequence[GroupCredit],
    base: Mapping[int, torch.Tensor],
    failed: Collection[int] = (),
    added: Mapping[int, torch.Tensor] | None = None,
) -> dict[int, TokenCredit]:
    """Return a step's token advantages by rollout: `base` times the rule's weights, or the rule's own advantages.

    Worked example: base -1, -1 of a rollout and weights 2, 0 -> advantages -2, 0; with 0.1, 0.1 added, -1.9, 0.1.

    Args:
        groups: all groups of the step.
        base: (T_i,) of each rollout, any float dtype; results have the same dtype.
        failed: rollouts without a reward: `over_batch` does not see them, and a rule's own advantages become 0.
        added: (T_i,) float64 of each rollout, added without a weight (a KL reward); a rule's own advantages ignore it.

    Raises CreditRuleError: the rule's `over_batch` failed.
    """
    tensors: dict[str, dict[int, torch.Tensor]] = {name: {} for name in CREDIT_TENSORS}
    for group in groups:
        for name, rows in group.tensors().items():
            tensors[name].update(zip(group.rollouts, rows, strict=True))
    if rule.makes_advantages:
        own = tensors["advantages"]
        rated = [i for i in sorted(own) if i not in failed]
        own.update(zip(rated, checked_over_batch(rule, [own[i] for i in rated]), strict=True))
        own.update({i: torch.zeros_like(own[i]) for i in own if i in failed})
        return {i: TokenCredit(values, own[i].float().cpu().to(values.dtype), None) for i, values in base.items()}
    credited = {}
    for i, values in base.items():
        weights, negative = tensors["weights"][i], tensors["negative_weights"].get(i)
        if negative is not None:
            weights = torch.where(values < 0, negative, weights)
        weighted = values * weights
        if added is not None:  # float64, so that weights of 1 reproduce the unweighted advantages bit for bit
            weighted = values.double() * weights + added[i]
        credited[i] = TokenCredit(values, weighted.to(values.dtype), weights)
    return credited


def blame_over_praise(credits: Iterable[TokenCredit]) -> float | None:
    """Return a step's token advantages below 0 over those above 0, by size; None without any above 0.

    Example: advantages -2, 0 and 1, 3.

    >>> blame_over_praise(TokenCredit(None, torch.tensor(row), None) for row in ([-2.0, 0.0], [1.0, 3.0]))
    0.5
    """
    tokens = torch.cat([credit.advantages.double() for credit in credits])
    praise = tokens.clamp(min=0).sum().item()
    return -tokens.clamp(max=0).sum().item() / praise if praise else None


@contextmanager
def shaped_advantages(
    rule: UpdateRule, actor: torch.nn.Module, loss: torch.nn.Module, metrics: list[dict[str, float]]
) -> Iterator[None]:
    """Replace the advantages with which `loss` is called by the rule's, while the context is open.

    Args:
        actor: returns (log-probs, output); `output.entropy` is (B, T - 1), and its last A columns belong to the loss.
        loss: called as OpenRLHF's `PolicyLoss`: (log_probs, old_log_probs, advantages, action_mask=...), (B, A) each.
        metrics: the rule's metrics are added here, as `NAME/...`, one dict per micro-batch.
    """
    latest: list[torch.Tensor] = []
    needed = "entropies" in rule.needs

    def keep_entropy(module, args, output):
        latest[:] = [output[1].entropy.detach()] if needed else []

    def shape(module, args, kwargs):
        log_probs, old_log_probs, advantages, *rest = args
        mask = kwargs["action_mask"].bool()
        entropies = latest.pop()[:, -advantages.shape[1] :] if needed else None
        shaped, numbers = checked_advantages(rule, advantages, mask, entropies, log_probs, old_log_probs)
        metrics.append({f"{rule.name}/{name}": value for name, value in numbers.items()})
        return (log_probs, old_log_probs, shaped, *rest), kwargs

    with actor.register_forward_hook(keep_entropy), loss.register_forward_pre_hook(shape, with_kwargs=True):
        yield
