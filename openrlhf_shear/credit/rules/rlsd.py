"""RLSD: RLVR with self-distillation (arXiv 2604.03128). A hint sets the size of the credit, the reward its sign.

    D_t  = log pi(y_t | hint) - log pi(y_t)
    w_t  = clip(exp(sign(A) D_t), 1 - clip, 1 + clip)
    A'_t = A (1 - l + l w_t)                          l: strength

The formulas are the paper's (equations 13 to 15) and those of ms-swift (`apply_rlsd_reweight`), whose defaults we have
too: strength 0.5, clip 0.2. What differs here:

- The hint is another correct response to the same prompt, as in `sdpo`. The paper's is a reference solution, which the
  lab's tasks do not have. Rollouts without such a response keep the weight 1.
- ms-swift can raise l over a warm-up and let it decay, and can leave rollouts with A >= 0 alone. The lab's control
  `rlsd/on_incorrect` does the latter for any rule.

Only the credit lab gives log-probs under a hint, so training refuses this rule.
"""

from collections.abc import Sequence

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs


class RlsdRule(WithKnobs, CreditRule):
    """Rule of the formulas above; weights are positive, so it keeps every sign."""

    name = "rlsd"
    needs = frozenset({"log_probs", "hint_log_probs"})

    def credit(self, group: RolloutGroup) -> Credit:
        gains = hint_gains(group)
        return Credit(
            [self._weights(gain) for gain in gains],
            negative_weights=[self._weights(-gain) for gain in gains],
            metrics={"gain": mean_gain(gains)},
        )

    def _weights(self, gain: torch.Tensor) -> torch.Tensor:
        strength = self.config.strength
        return 1 - strength + strength * gain.exp().clamp(1 - self.config.clip, 1 + self.config.clip)


def hint_gains(group: RolloutGroup) -> Sequence[torch.Tensor]:
    """Return `log pi(y_t | hint) - log pi(y_t)`, G tensors (T_i,) float32; 0 where no other rollout is correct."""
    right = [correct is True for correct in group.correct]
    rows = zip(group.hint_log_probs, group.log_probs, right, strict=True)
    return [hinted - plain if sum(right) > own else torch.zeros_like(plain) for hinted, plain, own in rows]


def mean_gain(gains: Sequence[torch.Tensor]) -> float:
    """Return the mean over all tokens; far below 0, the policy is confused by the hint rather than informed."""
    return torch.cat(list(gains)).mean().item() if any(map(len, gains)) else 0.0
