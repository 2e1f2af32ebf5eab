"""A fixed set of the start policy's rollouts, whose errors are known, and what a rule does to it."""

from __future__ import annotations

from pathlib import Path

import torch

from openrlhf_shear.arithmetic.problems import make_problems
from openrlhf_shear.credit.checks import checked_advantages
from openrlhf_shear.credit.rule import UpdateRule
from openrlhf_shear.lab.credit import credited
from openrlhf_shear.lab.policy import Policy, Reading
from openrlhf_shear.lab.rollouts import Rollouts, sample
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import Variant
from openrlhf_shear.rollouts.traces import Trace

SEED = 1  # not the problems of the final accuracy
DIGITS = 5  # of a factor


def known_rollouts(settings: LabSettings, start: Path) -> tuple[Rollouts, Reading]:
    """The fixed set, held-out problems, and the start policy's reading of it with hidden states."""
    policy = Policy(start, settings)
    problems = make_problems(settings.placement_prompts, SEED, "heldout", operations=settings.operations)
    rollouts = sample(policy, problems, settings.samples_per_prompt, settings, SEED)
    with torch.no_grad():
        return rollouts, policy.read(rollouts.sequences, rollouts.mask, states=True)


def traces(settings: LabSettings, variant: Variant, rollouts: Rollouts, reading: Reading) -> list[Trace]:
    """The rollouts of mixed groups with the factor on each token's advantage, whatever kind of rule made it.

    Raises:
        CreditRuleError: the rule failed.
    """
    rule = variant.rule(settings)
    wanted = reading if "hidden_states" in rule.needs else Reading(reading.log_probs, reading.entropies, None)
    credit = credited(rule, variant.control, rollouts, wanted, SEED)
    advantages = credit.advantages
    if isinstance(rule, UpdateRule):
        before = torch.zeros_like(reading.log_probs)
        before[rollouts.mask] = torch.cat(advantages)
        shaped, _ = checked_advantages(rule, before, reading.entropies, rollouts.mask)
        advantages = [row[keep] for row, keep in zip(shaped, rollouts.mask, strict=True)]
    return [
        Trace(
            group=str(i // rollouts.group_size),
            correct=rollouts.correct[i],
            # float32 advantages: rounded, so that equal factors are equal whatever the advantage was
            weights=(advantages[i].double() / base).numpy().round(DIGITS).tolist(),
            first_error=rollouts.first_errors[i],
        )
        for i, base in enumerate(credit.base)
        if base != 0
    ]
