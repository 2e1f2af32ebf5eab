"""Entropy advantage shaping (Cheng et al. 2025, arXiv 2506.14758): tokens with a high policy entropy get a bonus.

`A'_t = A_t + min(alpha H_t, |A_t| / kappa)`, H_t the current policy's entropy at token t in nats, detached.
"""

import torch

from openrlhf_shear.credit.rule import UpdateRule, masked_means
from openrlhf_shear.credit.rules import WithKnobs


class EntropyAdvRule(WithKnobs, UpdateRule):
    """Rule of the formula above, with the paper's alpha = 0.4 and kappa = 2 by default."""

    name = "entropy_adv"

    def advantages(
        self, advantages: torch.Tensor, entropies: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, float]]:
        bonus, most = self.config.alpha * entropies, advantages.abs() / self.config.kappa
        credited, shaped = mask & (advantages != 0), torch.minimum(bonus, most)
        means = {"entropy": (entropies, mask), "bonus": (shaped, credited), "capped": (bonus > most, credited)}
        return advantages + shaped, masked_means(means)
