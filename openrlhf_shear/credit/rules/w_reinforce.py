"""W-REINFORCE: REINFORCE with little praise (Zhu et al. 2025, arXiv 2506.01347), a rule that makes advantages.

    A_it = positive if rollout i is correct, else -negative

The paper has rewards of 1 and -1 without a baseline, and multiplies praise by lambda = 0.1, our `positive`. Its
positive sample reinforcement (PSR) is `positive=1/negative=0`, its negative sample reinforcement (NSR) `positive=0`.
The formulas are those of the authors' code (TianHongZXY/RLVR-Decomposed, `compute_psr_nsr_outcome_advantage`). For PSR
and NSR that code drops the other rollouts before the loss takes its mean; here they stay, with advantages of 0.
"""

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs


class WReinforceRule(WithKnobs, CreditRule):
    """Rule of the formula above: without a baseline, groups of one outcome count too."""

    name = "w_reinforce"
    makes_advantages = True

    def credit(self, group: RolloutGroup) -> Credit:
        values = {True: self.config.positive, False: -self.config.negative, None: 0.0}
        rows = zip(group.lengths, group.correct, strict=True)
        return Credit(advantages=[torch.full((n,), values[correct]) for n, correct in rows])
