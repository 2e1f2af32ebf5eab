"""A3PO's asymmetric token shaping (Tang et al. 2025, arXiv 2512.21625), without its decay.

    A~_t = A praise where A > 0 and pi(y_t) is among the `share` lowest of the rollout
    A~_t = A blame  where A < 0 and pi(y_t) is among the `share` highest of the rollout, else A

pi is the policy that sampled the rollout. max(1, floor(share T)) tokens are chosen of T, in ties the earlier for praise
and the later for blame. The formula and the defaults are those of the authors' code and scripts
(txy77/Sample-Polarity-of-RLVR, `token-weighted` with the metric `prob`).

A3PO also lets both factors decay over training. **That code has no decay**, and we could not read the paper's formula
of it, so here they stay.
"""

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs


class A3PoRule(WithKnobs, CreditRule):
    """Rule of the formulas above; factors of 1 are GRPO."""

    name = "a3po"
    needs = frozenset({"log_probs"})

    def credit(self, group: RolloutGroup) -> Credit:
        praise, blame = ([torch.ones(n) for n in group.lengths] for _ in range(2))
        for log_probs, more_praise, more_blame in zip(group.log_probs, praise, blame, strict=True):
            chosen = max(1, int(self.config.share * len(log_probs) + 1e-9))  # 0.3 * 10 is 2.9999999999999996
            order = log_probs.argsort(stable=True)
            more_praise[order[:chosen]] = self.config.praise
            more_blame[order[-chosen:]] = self.config.blame
        return Credit(praise, negative_weights=blame)
