"""SHEAR, sharpened, and for incorrect rollouts only: w_t = (omega_t / max omega of the rollout) ** power.

Correct rollouts keep weight 1. SHEAR's contrast between tokens is small (about 1.4); a power widens it.
"""

from __future__ import annotations

import torch

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import Credit, CreditRule, RolloutGroup, shear_weights


class SharpenedRule(CreditRule):
    """Blames tokens by a power of their distance."""

    name = "sharpened"
    needs = frozenset({"hidden_states"})

    def __init__(self, power: float = 4.0, window: int = 16, stride: int = 4, epsilon_rel: float = 0.03):
        self.power = power
        self.config = ShearConfig(window=window, stride=stride, epsilon_rel=epsilon_rel)

    def credit(self, group: RolloutGroup) -> Credit:
        omega = [w.cpu() for w in shear_weights(group.hidden_states, group.correct, self.config).weights]
        weights = [torch.ones(length) for length in group.lengths]
        for i, correct in enumerate(group.correct):
            if correct is False and group.lengths[i]:
                weights[i] = (omega[i] / omega[i].max().clamp(min=1e-6)) ** self.power
        return Credit(weights)
