"""Incorrect rollouts are blamed by the odds that their first error is at the token; one token's worth in all.

    p_t ~ s_t^surprisal exp(-entropy H_t + rise r_t), summing to 1 over the rollout

with s_t = -log p(token t), H_t the entropy it was drawn from, both in nats, and r_t = mean omega of the `reach` tokens
from t on minus that of the `reach` tokens before it where that is positive; omega are SHEAR's weights for small
windows. Correct rollouts keep weight 1.

An error is a token that surprised a policy which was sure (a free choice surprises one that was not), and from which on
the rollout is unlike every correct one. SHEAR's weights alone say *after* the error; their rise says *where*. This rule
is the project's own, no paper's: docs/credit-lab.md has what it is worth on the task that its constants were chosen on.
"""

from __future__ import annotations

import torch

from openrlhf_shear.config import ErrorOddsConfig, ShearConfig
from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.shear import shear_weights

_LEAST_SURPRISAL = 1e-3  # nats; below it a token is as good as certain


class ErrorOddsRule(CreditRule):
    """As above.

    Args:
        shear: what runs the span search, and its memory; windows and epsilon are this rule's own.
    """

    name = "error_odds"
    needs = frozenset({"hidden_states", "log_probs", "entropies"})

    def __init__(self, config: ErrorOddsConfig | None = None, shear: ShearConfig | None = None):
        self.config = config or ErrorOddsConfig()
        self.search = self.config.search(shear or ShearConfig())
        if not self.config.rise:
            self.needs = self.needs - {"hidden_states"}

    def credit(self, group: RolloutGroup) -> Credit:
        """Metrics: `largest_weight`, the mean over incorrect rollouts of the largest (1: one token has all blame);
        `opposed`, whether there was a rise to measure, and `unconverged_fraction`, unless `rise` is 0.
        """
        weights = [torch.ones(length) for length in group.lengths]
        blamed = [i for i, correct in enumerate(group.correct) if correct is False and group.lengths[i]]
        omega, metrics = weights, {}
        if self.config.rise:
            found = shear_weights(group.hidden_states, group.correct, self.search)
            omega = [one.cpu() for one in found.weights]
            metrics = {"opposed": float(found.opposed), "unconverged_fraction": found.unconverged_fraction}
        for i in blamed:
            weights[i] = self._odds(omega[i], group.log_probs[i].cpu(), group.entropies[i].cpu())
        if blamed:
            metrics["largest_weight"] = sum(weights[i].max().item() for i in blamed) / len(blamed)
        return Credit(weights, metrics)

    def _odds(self, omega: torch.Tensor, log_probs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
        surprisal = (-log_probs).clamp(min=_LEAST_SURPRISAL).log()
        rises = rise(omega, self.config.reach, self.config.reach)
        of = self.config
        return torch.softmax(of.surprisal * surprisal - of.entropy * entropies + of.rise * rises, 0)


def rise(omega: torch.Tensor, after: int, before: int) -> torch.Tensor:
    """(T,) from (T,): how far the mean of tokens t..t+after-1 exceeds that of t-before..t-1; 0 at the first token."""
    total = torch.cat([torch.zeros(1), omega.cumsum(0)])
    at = torch.arange(len(omega))
    end, begin = (at + after).clamp(max=len(omega)), (at - before).clamp(min=0)
    ahead = (total[end] - total[at]) / (end - at)
    behind = (total[at] - total[begin]) / (at - begin).clamp(min=1)
    return torch.where(at > 0, ahead - behind, 0.0).clamp(min=0)
