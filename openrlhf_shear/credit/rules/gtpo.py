"""GTPO (Tan et al. 2025, arXiv 2508.04349): rewards of tokens by entropy, a rule that makes advantages.

At each position t, the rollouts of one outcome that are longer than t share a bonus. Correct rollouts i share it by
entropy, incorrect rollouts j by inverse entropy, so confident errors cost most:

    r_it =   alpha1 + alpha2 n_t H_it / sum_k H_kt            n_t correct rollouts k have a token t
    r_jt = - alpha1 - alpha2 m_t (1 / H_jt) / sum_k 1 / H_kt  m_t incorrect rollouts k have a token t
    A_it = (r_it - mean r) / (std r + 1e-9)                   over all tokens of the group

H is the entropy in nats of the policy that sampled the token, plus 1e-8. Zero entropies so share equally, and the
rewards of a position's correct rollouts always sum to n_t (alpha1 + alpha2), the paper's proposition 2.2.

The authors publish no code. We know the rewards of the paper's later versions (5 and 6) from public reproductions that
agree: teilomillet/textpolicy (`compute_gtpo_shaped_rewards`), and notes that restate the equations. Choices:

- Mean and deviation. The reproductions normalise correct and incorrect tokens apart (`normalize = apart`), as they say
  the later versions do. The outcome then cancels: half of a correct rollout's advantages may be negative. Our default
  is the deviation of all tokens, so that alpha2 = 0 is GRPO with each token counted.
- Groups of one outcome get advantages of 0. The paper trains on DAPO's dynamic sampling, which drops such groups.
- The paper's rewards are 0 and 1, so only the outcome counts here.

Means over the group's tokens and positions need whole groups, hence a `CreditRule`.
"""

from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from openrlhf_shear.config.rules import GtpoConfig
from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup

_TINY = 1e-8  # nats, added to each entropy


class GtpoRule(CreditRule):
    """Rule of the formulas above. Rollouts without a reward get advantages of 0, and count nowhere.

    With `normalize = together` a token's advantage has the sign of its outcome unless more than 1/2 + alpha1 / (2
    alpha1 + 2 alpha2) of the tokens have that outcome: 95% by default.
    """

    name = "gtpo"
    needs = frozenset({"entropies"})
    makes_advantages = True

    def __init__(self, config: GtpoConfig | None = None):
        self.config = config or GtpoConfig()

    def credit(self, group: RolloutGroup) -> Credit:
        right, wrong = (
            [i for i, n in enumerate(group.lengths) if n and group.correct[i] is side] for side in (True, False)
        )
        advantages = [torch.zeros(n) for n in group.lengths]
        mixed = bool(right and wrong)
        if mixed:
            praise = self.rewards([group.entropies[i] for i in right])
            blame = [-row for row in self.rewards([group.entropies[i] for i in wrong], inverse=True)]
            if self.config.normalize == "apart":
                made = normalized(praise) + normalized(blame)
            else:
                made = normalized(praise + blame)
            for i, row in zip(right + wrong, made, strict=True):
                advantages[i] = row.float()
        return Credit(metrics={"mixed_groups": float(mixed)}, advantages=advantages)

    def rewards(self, entropies: Sequence[torch.Tensor], inverse: bool = False) -> list[torch.Tensor]:
        """Return |r| of all rollouts of one outcome, float64 (T_i,) each, given H (T_i,); `inverse` shares by 1 / H."""
        weights = [h.double().clamp(min=0) + _TINY for h in entropies]
        padded = pad_sequence([1 / w if inverse else w for w in weights], batch_first=True)
        shares = padded / padded.sum(0) * (padded > 0).sum(0)
        return [self.config.alpha1 + self.config.alpha2 * row[: len(h)] for row, h in zip(shares, weights, strict=True)]


def normalized(rewards: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Scale to mean 0 and (unbiased) deviation 1 over all tokens; of fewer than two tokens, subtract the mean only."""
    tokens = torch.cat(list(rewards))
    scale = tokens.std() + 1e-9 if len(tokens) > 1 else 1.0
    return [(row - tokens.mean()) / scale for row in rewards]
