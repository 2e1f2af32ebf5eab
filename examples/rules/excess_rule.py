"""Incorrect rollouts are blamed where the policy surprised itself: surprisal beyond the entropy of its choice.

w_t = max(s_t - discount * H_t, 0) / max over the rollout of the same, with s_t = -log p(token t), H_t the entropy it
was drawn from, and discount 1 (0: by surprisal alone).
Correct rollouts keep weight 1.

The policy's own samples have E[s_t] = H_t, so a filler or any free choice, surprising as it is, counts for nothing on
average; a slip where the policy as good as knew the right token counts most. No hidden states are needed. A rollout
without any excess is not blamed.
"""

import torch

from openrlhf_shear.credit import Credit, CreditRule, RolloutGroup


class ExcessRule(CreditRule):
    """Blames tokens by surprisal in excess of entropy."""

    name = "excess"
    needs = frozenset({"log_probs", "entropies"})

    def __init__(self, discount: float = 1.0):
        self.discount = discount

    def credit(self, group: RolloutGroup) -> Credit:
        weights = [torch.ones(length) for length in group.lengths]
        for i, correct in enumerate(group.correct):
            if correct is False and group.lengths[i]:
                excess = (-group.log_probs[i] - self.discount * group.entropies[i]).clamp(min=0)
                weights[i] = excess / excess.max().clamp(min=1e-6)
        return Credit(weights)
