"""Incorrect rollouts are blamed where they begin to be far from the correct ones and not from each other.

    p_t ~ exp(rise r_t), summing to 1 over the rollout
    r_t = mean x of t+lag..t+lag+reach-1 - mean x of t-reach..t-1 where that is positive
    x_t = omega_t - own * omega'_t

omega is SHEAR's weight for small windows, the distance to the correct rollouts, and omega' the same distance to the
group's other incorrect ones, both in units of the group's mean norm (0 without another). What is merely unusual, a
benign choice of words among them, is far from both. Hidden states alone: no probabilities. Correct rollouts keep 1.
"""

import torch
from openrlhf_shear_examples.error_odds import rise

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import Credit, CreditRule, RolloutGroup, shear_weights


class ContrastRule(CreditRule):
    """As above; `own` 0 is the rise of SHEAR's weights alone, `lag` in tokens."""

    name = "contrast"
    needs = frozenset({"hidden_states"})

    def __init__(
        self,
        rise: float = 10.0,
        own: float = 1.0,
        lag: int = 0,
        reach: int = 8,
        window: int = 8,
        stride: int = 1,
        epsilon_rel: float = 0.015,
    ):
        self.rise, self.own, self.lag, self.reach = rise, own, lag, reach
        self.config = ShearConfig(window=window, stride=stride, epsilon_rel=epsilon_rel)

    def credit(self, group: RolloutGroup) -> Credit:
        """Metrics: `largest_weight`, the mean over incorrect rollouts of the largest; `opposed`, whether both outcomes
        were there. Without them every token of an incorrect rollout is blamed alike."""
        weights = [torch.ones(length) for length in group.lengths]
        blamed = [i for i, correct in enumerate(group.correct) if correct is False and group.lengths[i]]
        result = shear_weights(group.hidden_states, group.correct, self.config, self.search)
        for i in blamed:
            others = [group.hidden_states[j] for j in blamed if j != i]
            contrast = result.weights[i].cpu() - self.own * self._near(group.hidden_states[i], others, result.mean_norm)
            rises = rise(contrast, self.reach, self.reach).roll(-self.lag)
            rises[len(rises) - min(self.lag, len(rises)) :] = 0.0
            weights[i] = torch.softmax(self.rise * rises, 0)
        largest = sum(weights[i].max().item() for i in blamed) / max(len(blamed), 1)
        return Credit(weights, {"opposed": float(result.opposed)} | ({"largest_weight": largest} if blamed else {}))

    def _near(self, states: torch.Tensor, others: list[torch.Tensor], mean_norm: float) -> torch.Tensor:
        """(T,): the distance to the other incorrect rollouts."""
        if not others or not mean_norm:
            return torch.zeros(len(states))
        outcomes = [False] + [True] * len(others)
        near = shear_weights([states, *others], outcomes, self.config, self.search)
        return near.weights[0].cpu() * (near.mean_norm / mean_norm if near.opposed else 0.0)
