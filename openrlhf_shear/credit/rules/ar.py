"""AR: advantage reweighting (Yang et al. 2025, arXiv 2505.12929): unlikely tokens weigh less.

    w_t = alpha pi(y_t) + 1 - alpha        A~_t = A w_t

The gradient of a token grows with 1 - pi(y_t), so unlikely tokens dominate an update. The formula is the paper's
equation 4, and that of the authors' code (zhyang2226/AR-Lopti, `both_linear_normal`), which takes the sampling policy's
pi, as we do. Public readings report alpha = 0.1 on mathematics, our default, and 0.2 to 0.3 on logic puzzles.

Its second method, Lopti, is no credit rule: it updates unlikely tokens first, and then the others.
"""

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs


class ArRule(WithKnobs, CreditRule):
    """Rule of the formula above; alpha = 0 is GRPO."""

    name = "ar"
    needs = frozenset({"log_probs"})

    def credit(self, group: RolloutGroup) -> Credit:
        return Credit([self.config.alpha * log_probs.exp() + 1 - self.config.alpha for log_probs in group.log_probs])
