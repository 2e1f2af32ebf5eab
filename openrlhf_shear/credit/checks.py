"""Checks of what rules return, before it reaches an update. All raise `CreditRuleError`."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, GroupEvidence, RolloutGroup, UpdateRule
from openrlhf_shear.transport.copies import to_cpu

logger = logging.getLogger(__name__)
_STATES = ("hidden_states", "source_states")
_NUMBERS = (*_STATES, "log_probs", "entropies", "ref_log_probs", "hint_log_probs")


class CreditRuleError(RuntimeError):
    """A rule raised, or returned something other than credit of its group; the message names the rule and the group."""


def checked_credits(rule: CreditRule, groups: Sequence[RolloutGroup]) -> list[Credit]:
    """Return `rule.credits(groups)` with tensors in float32 on the CPU, for which it waits once.

    It refuses tensors of another kind, number or shape, or that are not finite. The rule sees rollouts whose numbers
    are not finite as rollouts without a reward (`without_nonfinite`).
    """
    groups = [_usable(rule, *each) for each in zip(groups, without_nonfinite(groups), strict=True)]
    wheres = [_where(rule, f"group {group.number}") for group in groups]
    if type(rule).credits is CreditRule.credits:  # one by one, so that a message names the group
        credits = [_guarded(where, partial(rule.credit, group)) for where, group in zip(wheres, groups, strict=True)]
    else:
        numbers = ", ".join(str(group.number) for group in groups)
        where = wheres[0] if len(groups) == 1 else _where(rule, f"groups {numbers}")
        credits = _guarded(where, lambda: rule.credits(groups))
        if not isinstance(credits, list) or len(credits) != len(groups):
            raise CreditRuleError(f"{where}: credits() must return a list with a Credit for each group")
    tensors = [_tensors(rule, *each) for each in zip(wheres, groups, credits, strict=True)]
    copies = iter(to_cpu(row.float() for of_group in tensors for rows in of_group.values() for row in rows))
    tensors = [{name: [next(copies) for _ in rows] for name, rows in of_group.items()} for of_group in tensors]
    for where, of_group in zip(wheres, tensors, strict=True):
        _check_finite(where, of_group)
    return [replace(credit, **of_group) for credit, of_group in zip(credits, tensors, strict=True)]


def without_nonfinite(groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """Return the groups with no reward and no outcome for rollouts that have a NaN or infinite number.

    They must not change the credit of the others. Updates leave out those whose log-probs are not finite. Their
    log-probs and entropies become 0 here; their states stay, so that a rule can count them.
    """
    numbers = [{name: rows for name in _NUMBERS if (rows := getattr(group, name))} for group in groups]
    every = (rows for of_group in numbers for rows in of_group.values())
    sums = iter(
        to_cpu(torch.stack([row.sum(dtype=torch.float32).to(rows[0].device) for row in rows]) for rows in every)
    )
    return [_without(*each, [next(sums) for _ in each[1]]) for each in zip(groups, numbers, strict=True)]


def _without(group: RolloutGroup, numbers: dict[str, Sequence[torch.Tensor]], sums: list[torch.Tensor]) -> RolloutGroup:
    usable = torch.stack(sums).isfinite().all(0).tolist() if sums else []
    if all(usable):
        return group
    changed = {
        name: tuple(row if usable[i] else torch.zeros_like(row) for i, row in enumerate(rows))
        for name, rows in numbers.items()
        if name not in _STATES
    }
    rewards = tuple(reward if usable[i] else math.nan for i, reward in enumerate(group.rewards))
    correct = tuple(outcome if usable[i] else None for i, outcome in enumerate(group.correct))
    return replace(group, rewards=rewards, correct=correct, **changed)


def _usable(rule: CreditRule, group: RolloutGroup, usable: RolloutGroup) -> RolloutGroup:
    lost = usable.correct.count(None) - group.correct.count(None)
    if lost:
        logger.warning(
            "%s: %d of %d rollouts have NaN or infinite numbers, and count as rollouts without a reward",
            _where(rule, f"group {group.number}"), lost, len(group.lengths),
        )  # fmt: skip
    return usable


def _tensors(rule: CreditRule, where: str, group: RolloutGroup, credit: Credit) -> dict[str, Sequence[torch.Tensor]]:
    """Return the credit's tensors; refuse other tensors than the rule should return, or of another shape."""
    if not isinstance(credit, Credit):
        raise CreditRuleError(f"{where}: credit() must return a Credit: got {type(credit).__name__}")
    tensors = credit.tensors()
    wanted, optional = ("advantages", "") if rule.makes_advantages else ("weights", "negative_weights")
    if not {wanted} <= tensors.keys() <= {wanted, optional}:
        raise CreditRuleError(
            f"{where}: with makes_advantages = {rule.makes_advantages} a Credit must have {wanted}: "
            f"got {', '.join(sorted(tensors)) or 'none'}"
        )
    for name in sorted(tensors):
        _check_shapes(where, name, tensors[name], group.lengths)
    return tensors


def checked_over_batch(rule: CreditRule, advantages: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return `rule.over_batch(advantages)`; refuse anything but finite advantages of these rollouts."""
    where = _where(rule, "over the batch")
    result = _guarded(where, lambda: rule.over_batch(advantages))
    _check_shapes(where, "advantages", result, [len(values) for values in advantages])
    _check_finite(where, {"advantages": result})
    return result


def checked_advantages(
    rule: UpdateRule,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    entropies: torch.Tensor | None,
    log_probs: torch.Tensor | None = None,
    old_log_probs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return `rule.advantages(...)`; refuse another shape, and values that are not finite.

    The rule gets those of its needs, detached and in float32; all are (B, A).
    """
    where = _where(rule, "in the update")
    inputs = {"entropies": entropies, "log_probs": log_probs, "old_log_probs": old_log_probs}
    needs = rule.needs | ({"old_log_probs"} if "log_probs" in rule.needs else set())
    inputs = {name: values.detach().float() for name, values in inputs.items() if name in needs}
    entropies = inputs.pop("entropies", None)
    shaped, metrics = _guarded(where, lambda: rule.advantages(advantages, entropies, mask, **inputs))
    if not isinstance(shaped, torch.Tensor) or shaped.shape != advantages.shape:
        raise CreditRuleError(f"{where}: advantages must be a tensor {tuple(advantages.shape)}: got {_shape(shaped)}")
    if bad := int((~torch.isfinite(shaped) & mask).sum()):
        raise CreditRuleError(f"{where}: {bad} advantages are NaN or infinite")
    return shaped, metrics


def checked_evidence(rule: CreditRule, group: RolloutGroup, credit: Credit) -> GroupEvidence | None:
    """Return `rule.evidence(group, credit)`; refuse anything but evidence of as many rollouts."""
    where, (group,) = _where(rule, f"group {group.number}"), without_nonfinite([group])
    evidence = _guarded(where, lambda: rule.evidence(group, credit), "evidence() raised")
    if evidence is None:
        return None
    if not isinstance(evidence, GroupEvidence):
        raise CreditRuleError(f"{where}: evidence() must return a GroupEvidence: got {type(evidence).__name__}")
    if len(evidence.rollouts) != len(group.lengths):
        raise CreditRuleError(
            f"{where}: evidence() must have one entry a rollout, {len(group.lengths)}: got {len(evidence.rollouts)}"
        )
    return evidence


def _where(rule: CreditRule | UpdateRule, place: str) -> str:
    return f"credit rule {rule.name} ({type(rule).__module__}:{type(rule).__qualname__}), {place}"


def _guarded(where: str, ask: Callable[[], Any], problem: str = "it raised") -> Any:
    try:
        return ask()
    except Exception as error:
        raise CreditRuleError(f"{where}: {problem} {type(error).__name__}: {error}") from error


def _check_shapes(where: str, name: str, tensors: Sequence[torch.Tensor], lengths: Sequence[int]) -> None:
    name = name.replace("_", " ")
    if not isinstance(tensors, Sequence) or len(tensors) != len(lengths):
        got = len(tensors) if isinstance(tensors, Sequence) else type(tensors).__name__
        raise CreditRuleError(f"{where}: {len(lengths)} rollouts need as many {name}: got {got}")
    for i, (values, length) in enumerate(zip(tensors, lengths, strict=True)):
        if not isinstance(values, torch.Tensor) or tuple(values.shape) != (length,):
            raise CreditRuleError(
                f"{where}: the {name} of rollout {i} must be a tensor ({length},): got {_shape(values)}"
            )


def _check_finite(where: str, tensors: Mapping[str, Sequence[torch.Tensor]]) -> None:
    for name in sorted(tensors):
        for i, values in enumerate(tensors[name]):
            if bad := int((~values.isfinite()).sum()):
                what = f"{bad} of {len(values)} {name.replace('_', ' ')} of rollout {i}"
                raise CreditRuleError(f"{where}: {what} are NaN or infinite")


def _shape(value: object) -> object:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
