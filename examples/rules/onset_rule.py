"""Blame incorrect rollouts where SHEAR's weights begin to rise, at a token that surprised the policy.

    w_t = max(mean omega of t..t+3 - mean omega of t-8..t-1, 0) * min(s_t, 3), divided by its maximum in the rollout

omega are SHEAR's weights for small windows, and s_t = -log p(token t). Correct rollouts keep weight 1.

SHEAR's weights show what is *after* the error; only their rise and the surprisal show *where* it is. A rollout whose
weights never rise is not blamed.
"""

import torch

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import Credit, CreditRule, RolloutGroup, shear_weights
from openrlhf_shear.credit.rules.error_odds import rise

AFTER, BEFORE = 4, 8  # tokens
MOST = 3.0  # nats


class OnsetRule(CreditRule):
    """Blames tokens by the onset of distance times surprisal."""

    name = "onset"
    needs = frozenset({"hidden_states", "log_probs"})

    def __init__(self, window: int = 4, stride: int = 1, epsilon_rel: float = 0.03):
        self.config = ShearConfig(window=window, stride=stride, epsilon_rel=epsilon_rel)

    def credit(self, group: RolloutGroup) -> Credit:
        omega = [w.cpu() for w in shear_weights(group.hidden_states, group.correct, self.config, self.search).weights]
        weights = [torch.ones(length) for length in group.lengths]
        for i, correct in enumerate(group.correct):
            if correct is False and group.lengths[i]:
                score = rise(omega[i], AFTER, BEFORE) * (-group.log_probs[i]).clamp(max=MOST)
                weights[i] = score / score.max().clamp(min=1e-6)
        return Credit(weights)
