"""Every token weighs 1: GRPO itself, through the same path as the other rules."""

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup


class UniformRule(CreditRule):
    """Rule of equal weights, `A~_t = A`."""

    name = "uniform"

    def credit(self, group: RolloutGroup) -> Credit:
        return Credit([torch.ones(length) for length in group.lengths])
