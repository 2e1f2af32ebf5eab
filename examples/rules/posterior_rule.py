"""Incorrect rollouts are blamed by the odds that their first error is at the token; one token's worth in all.

p_t ~ (s_t * exp(-2 H_t))^2 * exp(10 * rise_t), summing to 1 over the rollout, with s_t = -log p(token t), H_t the
entropy it was drawn from, and rise_t = mean omega of t..t+7 - mean omega of t-8..t-1 where that is positive; omega are
SHEAR's weights for windows of 8. Correct rollouts keep weight 1.

An error is a token that surprised a policy which was sure (a filler surprises one that was not), and from which on the
rollout is unlike every correct one. The constants were chosen on the built-in task, for its start policy's errors.
"""

from __future__ import annotations

import torch

from examples.rules.onset_rule import rise
from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import Credit, CreditRule, RolloutGroup, shear_weights

REACH = 8  # tokens on either side of a rise


class PosteriorRule(CreditRule):
    """Blames tokens by the odds that they are the first error."""

    name = "posterior"
    needs = frozenset({"hidden_states", "log_probs", "entropies"})

    def __init__(self, rise: float = 10.0, window: int = 8, stride: int = 1, epsilon_rel: float = 0.03):
        self.rise = rise
        self.config = ShearConfig(window=window, stride=stride, epsilon_rel=epsilon_rel)

    def credit(self, group: RolloutGroup) -> Credit:
        omega = [w.cpu() for w in shear_weights(group.hidden_states, group.correct, self.config).weights]
        weights = [torch.ones(length) for length in group.lengths]
        for i, correct in enumerate(group.correct):
            if correct is False and group.lengths[i]:
                surprisal = (-group.log_probs[i]).clamp(min=1e-3)
                odds = 2 * surprisal.log() - 4 * group.entropies[i] + self.rise * rise(omega[i], REACH, REACH)
                weights[i] = torch.softmax(odds, 0)
        return Credit(weights)
