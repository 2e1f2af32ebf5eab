"""GTPO (Tan et al. 2025, arXiv 2508.04349): rewards of tokens by entropy, a rule that makes advantages.

At each position t, the rollouts of one outcome that are longer than t share a bonus. Correct rollouts i share it by
entropy, incorrect rollouts j by inverse entropy, so confident errors cost most:

    r_it =   alpha1 + alpha2 n_t H_it / sum_k H_kt            n_t correct rollouts k have a token t
    r_jt = - alpha1 - alpha2 m_t (1 / H_jt) / sum_k 1 / H_kt  m_t incorrect rollouts k have a token t
    A_it = (r_it - mean r) / (std r + 1e-9)                   over all tokens of the group

H is the entropy of the distribution from which the token was drawn, in nats, plus 1e-8. So zero entropies share
equally, and the rewards of a position's correct rollouts always sum to n_t (alpha1 + alpha2), proposition 2.2.

We found no code by the authors. The rewards are those of the paper's later versions as public reproductions agree on
them, among them teilomillet/textpolicy (`compute_gtpo_shaped_rewards`). Where this rule differs from these:

- They normalise the tokens of correct and of incorrect rollouts apart (here `normalize = apart`), and say that the
  paper does. The outcome then cancels: the advantages of correct tokens sum to 0, so some are negative. Our default
  normalises all tokens of a group together, so that alpha2 = 0 is GRPO whose mean counts tokens.
- Groups of one outcome get advantages of 0. The paper uses DAPO's dynamic sampling, which drops such groups.
- textpolicy gives no bonus where all entropies of a position are 0. The paper's rewards are 0 and 1, textpolicy takes
  any; here the outcome alone counts.

The sums over a group's rollouts need whole groups, so this is a `CreditRule`.
"""

from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs

_TINY = 1e-8  # nats, added to each entropy


class GtpoRule(WithKnobs, CreditRule):
    """Rule of the formulas above. Rollouts without a reward get advantages of 0, and count nowhere.

    With `normalize = together` a token's advantage has the sign of its outcome unless more than 1/2 + alpha1 / (2
    alpha1 + 2 alpha2) of the tokens have that outcome: 95% by default.
    """

    name = "gtpo"
    needs = frozenset({"entropies"})
    makes_advantages = True

    def credit(self, group: RolloutGroup) -> Credit:
        right, wrong = (
            [i for i, n in enumerate(group.lengths) if n and group.correct[i] is side] for side in (True, False)
        )
        advantages = [torch.zeros(n) for n in group.lengths]
        if right and wrong:
            praise = self.rewards([group.entropies[i] for i in right])
            blame = [-row for row in self.rewards([group.entropies[i] for i in wrong], inverse=True)]
            if self.config.normalize == "apart":
                rows = normalized(praise) + normalized(blame)
            else:
                rows = normalized(praise + blame)
            for i, row in zip(right + wrong, rows, strict=True):
                advantages[i] = row.float()
        return Credit(advantages=advantages)

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
