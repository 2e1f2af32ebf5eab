"""DelTA: discriminative token credit (Zhang et al. 2026, arXiv 2605.21467): A~_t = A lambda_t.

    v_t   = (1 - pi(y_t)) h_t                                   proxy of the token's gradient
    mu_s  = sum |A| v_t / sum |A|                               centroid of side s, the tokens with A > 0 or A < 0
    m_t   = |v_t - mu_other|^2 - |v_t - mu_own|^2               margin of a token towards its own side
    a_t   = sigmoid(m_t / gamma_s)                              gamma_s: deviation of m on side s, at least 1e-4
    mu*_s = sum |A| a_t v_t / sum |A| a_t                       `rounds` times, with a_t of the centroids before
    lambda_t = low + (high - low) sigmoid(m*_t / gamma_s)       m* with mu*; then scaled to mean 1 over the tokens

h_t is the state from which token y_t was drawn, pi(y_t) its probability. The gradient of log pi(y_t) in the LM head's
matrix is (onehot(y_t) - pi) h_t^T; v_t is its row y_t. Tokens that look like their own side and unlike the other count
more.

The formulas are those of the authors' code (RUCBM/DelTA, `compute_log_prob_h` in dp_actor.py, K = `rounds`). As there,
the gamma_s of a later round, and of lambda, is that of the margins one round before. Where this rule differs:

- The authors take the centroids and the mean of lambda over all prompts of a rank. A rule here sees a group.
- A is the reward less the group's mean. Its scale cancels, so this equals GRPO's A.
- Rollouts with A = 0 count in the authors' mean, with lambda = low. Here they have weight 1, and do not count.
- The authors sum in the policy's dtype. Here sums and centroids are float32.

Cost: 2 + `rounds` passes over the states, some 10 T d operations, and a rollout's states in float32 at a time. No
logits are made.
"""

import math

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs
from openrlhf_shear.transport.copies import to_cpu, to_device

_TINY = 1e-8  # least variance of margins


class DeltaRule(WithKnobs, CreditRule):
    """Rule of the formulas above; no advantage changes its sign. Groups without two sides have weights of 1."""

    name = "delta"
    needs = frozenset({"source_states", "log_probs"})

    def credit(self, group: RolloutGroup) -> Credit:
        weights = [torch.ones(n) for n in group.lengths]
        rated = [reward for reward in group.rewards if not math.isnan(reward)]
        mean = math.fsum(rated) / len(rated) if len(set(rated)) > 1 else math.nan
        size = {i: abs(reward - mean) for i, reward in enumerate(group.rewards) if group.lengths[i]}  # |A|
        sides = [[i for i in size if group.rewards[i] > mean], [i for i in size if group.rewards[i] < mean]]
        if not all(sides):
            return Credit(weights)
        states = {i: group.source_states[i] for side in sides for i in side}
        surprise = {i: to_device(-torch.expm1(group.log_probs[i].float()), states[i].device) for i in states}
        centroids = [
            _centroid(states, surprise, {i: torch.full_like(surprise[i], size[i]) for i in side}) for side in sides
        ]
        margins = _margins(states, surprise, sides, centroids)
        spread = [_deviation(side) for side in margins]
        for _ in range(self.config.rounds):
            near = [
                {i: size[i] * torch.sigmoid(row / gamma) for i, row in side.items()}
                for side, gamma in zip(margins, spread, strict=True)
            ]
            centroids = [_centroid(states, surprise, side) for side in near]
            spread = [_deviation(side) for side in margins]
            margins = _margins(states, surprise, sides, centroids)
        low, high = self.config.low, self.config.high
        pairs = [(row, gamma) for side, gamma in zip(margins, spread, strict=True) for row in side.values()]
        rows = [low + (high - low) * torch.sigmoid(row / gamma) for row, gamma in pairs]
        apart = (centroids[0] - centroids[1]).norm() / (centroids[0].norm() + centroids[1].norm()).clamp(min=_TINY)
        apart, *rows = to_cpu([apart, *rows])
        mean_weight = torch.cat(rows).mean()
        for i, row in zip(states, rows, strict=True):
            weights[i] = row / mean_weight
        return Credit(weights, {"centroids_apart": apart.item()})


# v = surprise * state: `states` (T_i, d) and `surprise` 1 - pi(y_t), (T_i,) float32, by rollout and on one device.


def _centroid(states: dict, surprise: dict, weights: dict[int, torch.Tensor]) -> torch.Tensor:
    """Return the weighted mean (d,) of v over the rollouts, whose weights are (T_i,)."""
    total = sum((row * surprise[i]) @ states[i].float() for i, row in weights.items())
    return total / sum(row.sum().double() for row in weights.values())


def _margins(states: dict, surprise: dict, sides: list[list[int]], centroids: list[torch.Tensor]) -> list[dict]:
    """Return m of both sides' rollouts, by rollout (T_i,): 2 (mu_own - mu_other) (v - (mu_own + mu_other) / 2)."""
    middle = (centroids[0] + centroids[1]) / 2
    margins = []
    for side, across in zip(sides, (centroids[0] - centroids[1], centroids[1] - centroids[0]), strict=True):
        rows = ((i, surprise[i] * (states[i].float() @ across)) for i in side)
        margins.append({i: 2 * (row - middle @ across) for i, row in rows})
    return margins


def _deviation(margins: dict[int, torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(margins.values())).var(correction=0).clamp(min=_TINY).sqrt()
