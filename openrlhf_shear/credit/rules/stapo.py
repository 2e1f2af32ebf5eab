"""STAPO: silencing of spurious tokens (Liu et al. 2026, arXiv 2602.15620).

    w_t = 0 where A > 0, pi(y_t) < probability and H_t < tau, else 1        A~_t = A w_t

A token that the policy was sure not to sample, in a correct rollout, has a large gradient and taught nothing. tau is
the entropy above which the `fraction` of the group's tokens with the highest entropies lie, in nats.

We found no code by the authors. The mask and `probability` = 0.002 are those of two public readings of the paper's
first version (algorithm 1). It calls the entropy threshold 80% in section 5.1 and 20% in section 5.3, where it masks
"the bottom 80%": so both are our `fraction` = 0.2. What differs here:

- The paper takes pi, H and the quantile of a mini-batch from the current policy. We take those of the policy that
  sampled the group, as `entropy_mask` does.
- The paper divides the loss by the number of tokens that are left, 99.99% in its runs; ours divides by all.
"""

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs
from openrlhf_shear.credit.rules.entropy_mask import high_entropies


class StapoRule(WithKnobs, CreditRule):
    """Rule of the formula above; blame is that of GRPO."""

    name = "stapo"
    needs = frozenset({"log_probs", "entropies"})

    def credit(self, group: RolloutGroup) -> Credit:
        high, _ = high_entropies(group, self.config.fraction)
        rows = zip(group.log_probs, high, strict=True)
        weights = [(unsure | (log_probs.exp() >= self.config.probability)).float() for log_probs, unsure in rows]
        praised = [row for row, correct in zip(weights, group.correct, strict=True) if correct]
        silenced = 1 - torch.cat(praised).mean().item() if any(map(len, praised)) else 0.0
        return Credit(weights, {"silenced": silenced}, [torch.ones(n) for n in group.lengths])
