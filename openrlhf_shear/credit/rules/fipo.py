"""FIPO: future-KL influenced policy optimization (Ma et al. 2026, arXiv 2603.19835), a rule that acts in the update.

    d_t  = log pi(y_t) - log pi_old(y_t)              pi: the current policy; pi_old: that of the loss's ratio
    F_t  = sum over k >= 0 of gamma^k M_t+k d_t+k     gamma = 2^(-1 / half_life)
    f_t  = clip(exp F_t, 1 - clip_low, 1 + clip_high)
    A'_t = A_t f_t

M is 0 outside the response and at outliers, tokens with exp d_t > outlier, and 1 elsewhere. Where A_t < 0 and
exp d_t > safety, f_t is then clipped to [0.8, 1]. k counts positions, also those of an environment between two turns.

Two public codes agree on these formulas: the authors' (`compute_policy_loss_future_kl`, as in the fork vukrosic/FIPO)
and ms-swift (`_compute_fipo_influence`). The defaults are those of the authors' 32B script, so no f_t is below 1;
ms-swift has no outliers by default, and safety = 4. What differs here:

- The authors' loss also caps the ratio of blamed tokens at `outlier`, and drops responses with two such tokens. That
  is the loss, not the advantage: we keep OpenRLHF's.
- In both codes a clip range of 0 means no clip, or one at 10. Here it means f_t = 1 on that side.

The ratio is 1 until the first optimizer step on a batch of rollouts: a run with one mini-batch a step is GRPO.
"""

import torch

from openrlhf_shear.credit.rule import UpdateRule, masked_means
from openrlhf_shear.credit.rules import WithKnobs

_SAFE = (0.8, 1.0)  # f_t of blamed tokens whose probability rose most


class FipoRule(WithKnobs, UpdateRule):
    """Rule of the formulas above; it keeps every sign."""

    name = "fipo"
    needs = frozenset({"log_probs"})

    def advantages(
        self,
        advantages: torch.Tensor,
        entropies: None,
        mask: torch.Tensor,
        *,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        rise = torch.where(mask, log_probs.double() - old_log_probs.double(), 0.0)
        outlier = self._exceeds(rise, self.config.outlier)
        future = future_sums(rise.masked_fill(outlier, 0.0), 2 ** (-1 / self.config.half_life))
        low, high = 1 - self.config.clip_low, 1 + self.config.clip_high
        weights = future.exp().clamp(low, high)
        unsafe = self._exceeds(rise, self.config.safety) & (advantages < 0)
        weights = torch.where(unsafe, weights.clamp(*_SAFE), weights)
        means = {
            "future_kl": future,
            "weight": weights,
            "clipped": (future.exp() > high) | (future.exp() < low),
            "outliers": outlier,
            "unsafe": unsafe,
        }
        metrics = masked_means({name: (values, mask) for name, values in means.items()})
        return torch.where(mask, (advantages * weights).to(advantages.dtype), advantages), metrics

    @staticmethod
    def _exceeds(rise: torch.Tensor, ratio: float) -> torch.Tensor:
        return rise.exp() > (ratio or torch.inf)


def future_sums(values: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return `sum over k >= 0 of gamma^k values[:, t + k]` for each t, of (B, A), in log2 A additions.

    After n of them each sum has 2^n terms.

    >>> future_sums(torch.tensor([[1.0, 2.0, 4.0]]), 0.5).tolist()
    [[3.0, 4.0, 4.0]]
    """
    sums, terms = values.clone(), 1
    while terms < values.shape[1]:
        sums[:, :-terms] += gamma**terms * sums[:, terms:]
        terms *= 2
    return sums
