"""SPRO: self-guided process reward optimization (Fei et al. 2025, arXiv 2507.01551), a rule that makes advantages.

    C_it = beta sum over j <= t of (log pi(y_ij) - log pi_ref(y_ij))         the cumulative process reward
    A_it = A_i + C_it - mean of C_kt over the rollouts k that have a token t     A_i: GRPO's advantage of rollout i

The paper calls the difference of the last two terms the masked step advantage.

**We found neither the authors' code nor the paper's whole text.** The formulas are those that its abstract and public
reviews describe. They have a sum of log-ratios against the reference model over the prefix, less the group's masked
mean at the same step, plus the normalised reward. None of them gives beta. 0.05 is that of PRIME (arXiv 2502.01456),
whose process reward has the same form. By the reviews the paper trains without a KL loss. OpenRLHF has a reference
model only with a KL coefficient above 0, so use a tiny coefficient, with `--algo.kl.use_loss`.

pi is the policy that the actor holds when experience is made, not the current policy of each update. Over the first
step it equals a reference model that is the start policy, and the rule is GRPO.
"""

import torch
from torch.nn.utils.rnn import pad_sequence

from openrlhf_shear.credit.baselines import outcome_advantages
from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs


class SproRule(WithKnobs, CreditRule):
    """Rule of the formulas above, which may change signs.

    A group whose rewards are all equal still has the second part. A rollout without a reward gets advantages of 0, and
    no mean includes it.
    """

    name = "spro"
    needs = frozenset({"log_probs", "ref_log_probs"})
    makes_advantages = True

    def credit(self, group: RolloutGroup) -> Credit:
        advantages = [torch.zeros(length) for length in group.lengths]
        rated = group.rated
        if not rated:
            return Credit(advantages=advantages)
        outcome = outcome_advantages(group.rewards)
        ratios = [group.log_probs[i].double() - group.ref_log_probs[i].double() for i in rated]
        rewards = pad_sequence([self.config.beta * each.cumsum(0) for each in ratios], batch_first=True)
        mask = pad_sequence([torch.ones_like(each, dtype=torch.bool) for each in ratios], batch_first=True)
        steps = torch.where(mask, rewards - rewards.sum(0) / mask.sum(0), 0.0)  # every column has a token
        for i, row, there in zip(rated, steps, mask, strict=True):
            advantages[i] = (outcome[i] + row[there]).float()
        return Credit(metrics={"process": steps.abs().sum().item() / max(int(mask.sum()), 1)}, advantages=advantages)
