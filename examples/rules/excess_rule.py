"""Blame incorrect rollouts where the policy surprised itself: surprisal beyond the entropy of its choice.

    w_t = max(s_t - discount * H_t, 0), divided by its maximum in the rollout

s_t = -log p(token t), and H_t is the entropy of the distribution of token t. `discount` is 1; with 0 the surprisal
alone counts. Correct rollouts keep weight 1.

The policy's samples have E[s_t] = H_t. So a filler or another free choice counts for nothing on average, however
surprising it is. A slip where the policy was almost sure of the right token counts most. The rule needs no hidden
states. A rollout without any excess is not blamed.
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
