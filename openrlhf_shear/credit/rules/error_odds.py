"""Blame the tokens of incorrect rollouts by the odds that they are the first error; the blame sums to one token.

    p_t ~ s_t^surprisal exp(-entropy H_t + rise r_t), summing to 1 over the rollout

s_t = -log p(token t), and H_t is the entropy of the distribution of token t, both in nats. r_t is the mean omega of the
`reach` tokens from t on, minus the mean omega of the `reach` tokens before t, or 0 if this is negative. omega are
SHEAR's weights for small windows. Correct rollouts keep weight 1.

An error is a token that surprised a policy which was sure; a free choice surprises a policy that was not. After an
error the rollout is unlike every correct rollout. SHEAR's weights alone show what is *after* the error; their rise
shows *where* it is.

The rule comes from this project, not from a paper; its criterion is also that of STAPO (`stapo.py`), for praise, and of
RSI (arXiv 2606.31575), which drop such tokens. docs/credit-lab.md measures it on the task that its constants were
chosen on. The rise adds nothing there: error_odds/rise=0 reads no hidden states and gains as much.
"""

import torch

from openrlhf_shear.config.shear import ErrorOddsConfig
from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.shear import shear_groups

_LEAST_SURPRISAL = 1e-3  # nats; below it a token is as good as certain


class ErrorOddsRule(CreditRule):
    """Blames tokens by the odds of the first error."""

    name = "error_odds"
    needs = frozenset({"log_probs", "entropies", "hidden_states"})

    def __init__(self, config: ErrorOddsConfig | None = None):
        self.config = config or ErrorOddsConfig()
        self.needs = self.needs - self.config.idle_needs()

    def credit(self, group: RolloutGroup) -> Credit:
        """Return the weights, and these metrics.

        `largest_weight` is the mean over incorrect rollouts of the largest weight; at 1 a single token has all blame.
        Unless `rise` is 0, there are also `opposed`, whether there was a rise to measure, `unconverged_fraction` and
        `cost_spread` (`credit.shear`).
        """
        weights = [torch.ones(length) for length in group.lengths]
        blamed = [i for i, correct in enumerate(group.correct) if correct is False and group.lengths[i]]
        signal, metrics = self.signal(group) if self.config.rise else (weights, {})
        for i in blamed:
            weights[i] = self._odds(signal[i], group.log_probs[i].cpu(), group.entropies[i].cpu())
        if blamed:
            metrics["largest_weight"] = sum(weights[i].max().item() for i in blamed) / len(blamed)
        return Credit(weights, metrics)

    def signal(self, group: RolloutGroup) -> tuple[list[torch.Tensor], dict[str, float]]:
        """Return for each rollout (T_i,), on the CPU, what rises at an error: SHEAR's weights; and metrics."""
        (result,) = shear_groups([(group.hidden_states, group.correct)], self.config.shear, self.search)
        metrics = {"opposed": float(result.opposed), "unconverged_fraction": result.unconverged_fraction}
        return result.weights, metrics | result.spread_metrics

    def _odds(self, signal: torch.Tensor, log_probs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
        surprisal = (-log_probs).clamp(min=_LEAST_SURPRISAL).log()
        knobs = self.config
        odds = knobs.surprisal * surprisal - knobs.entropy * entropies + knobs.rise * self.risen(signal)
        return torch.softmax(odds, 0)

    def risen(self, signal: torch.Tensor) -> torch.Tensor:
        """Return (T,) from the signal (T,) of a rollout: how much it rises at each token."""
        return rise(signal, self.config.reach, self.config.reach)


def rise(omega: torch.Tensor, after: int, before: int) -> torch.Tensor:
    """Return (T,) from (T,): the mean of t..t+after-1 minus the mean of t-before..t-1, at least 0; 0 at token 0."""
    total = torch.cat([torch.zeros(1), omega.cumsum(0)])
    at = torch.arange(len(omega))
    end, begin = (at + after).clamp(max=len(omega)), (at - before).clamp(min=0)
    ahead = (total[end] - total[at]) / (end - at)
    behind = (total[at] - total[begin]) / (at - begin).clamp(min=1)
    return torch.where(at > 0, ahead - behind, 0.0).clamp(min=0)
