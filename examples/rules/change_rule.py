"""Blame incorrect rollouts where SHEAR's weights change for good; the blame of a rollout sums to one token.

    p_t ~ s_t^surprisal exp(rise z_t), summing to 1 over the rollout
    z_t = sqrt(t (T - t) / T) (mean omega of t..T-1 - mean omega of 0..t-1)

s_t = -log p(token t), in nats, and omega are SHEAR's weights for small windows. z is the statistic of a change of mean
at a known moment (CUSUM; Page 1954). All tokens after an error differ from every correct rollout. Tokens after an
unusual choice of words soon do not. Correct rollouts keep weight 1.
"""

import torch

from openrlhf_shear.config.shear import ErrorOddsConfig
from openrlhf_shear.credit.rules.error_odds import ErrorOddsRule


class ChangeRule(ErrorOddsRule):
    """Blames tokens by surprisal and by the change at them.

    The knobs are those of `error_odds` except `reach`, which is the whole rollout.
    """

    name = "change"

    def __init__(
        self, surprisal: float = 4.0, entropy: float = 0.0, rise: float = 4.0, epsilon_rel: float = 0.015, **spans
    ):
        odds = {"surprisal": surprisal, "entropy": entropy, "rise": rise, "epsilon_rel": epsilon_rel}
        super().__init__(ErrorOddsConfig(**odds, **spans))

    def risen(self, signal: torch.Tensor) -> torch.Tensor:
        length, at = len(signal), torch.arange(len(signal))
        before = signal.cumsum(0) - signal
        apart = (signal.sum() - before) / (length - at) - before / at.clamp(min=1)
        return torch.where(at > 0, apart, 0.0) * (at * (length - at) / length).sqrt()
