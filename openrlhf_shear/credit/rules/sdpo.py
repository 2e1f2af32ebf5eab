"""SDPO: self-distillation policy optimization (Hübotter et al. 2026, arXiv 2601.20802), a rule that makes advantages.

    A'_t = (1 - share) A + share (log pi(y_t | hint) - log pi(y_t))

The hint is another correct response to the same prompt. Rollouts without one have a second term of 0.

This is the gradient of the authors' loss on sampled tokens (lasgroup/SDPO, `compute_self_distillation_loss`,
`full_logit_distillation: False`) and of TRL's (`distillation_mode="sampled_token"`, whose `distillation_weight` is the
share, 1 by default). The loss is `(log pi - log pi_hint) log pi` with the first factor detached. What differs here:

- The authors' configuration distils the 100 likeliest tokens of each position, with a Jensen-Shannon divergence
  (alpha 0.5). An advantage of the sampled token cannot express that.
- Their teacher is a moving average of the policy (rate 0.05). Ours is the policy that sampled, TRL's `"live"`.
- They put the hint into the prompt's text, with a request to solve the problem again. Our hint precedes the prompt, and
  is the next correct rollout of the group, not the first.
- Their loss weighs tokens by the ratio, at most 2. Here the trainer's clipped loss does.

Only the credit lab gives log-probs under a hint, so training refuses this rule.
"""

import math

import torch

from openrlhf_shear.credit.baselines import outcome_advantages
from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs
from openrlhf_shear.credit.rules.rlsd import hint_gains, mean_gain


class SdpoRule(WithKnobs, CreditRule):
    """Rule of the formula above, which does not keep signs. A rollout without a reward gets advantages of 0."""

    name = "sdpo"
    needs = frozenset({"log_probs", "hint_log_probs"})
    makes_advantages = True

    def credit(self, group: RolloutGroup) -> Credit:
        share, gains = self.config.share, hint_gains(group)
        advantages = [
            torch.zeros_like(gain) if math.isnan(reward) else (1 - share) * outcome + share * gain
            for gain, outcome, reward in zip(gains, outcome_advantages(group.rewards), group.rewards, strict=True)
        ]
        return Credit(metrics={"gain": mean_gain(gains)}, advantages=advantages)
