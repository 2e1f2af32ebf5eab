"""OTB: optimal token baseline (Li et al. 2026, arXiv 2602.07078), a rule that makes advantages.

    A_it = R_i - B_t,    B_t = sum_j W_jt R_j / sum_j W_jt      over the rollouts j that have a token t
    W_it = sum over s <= t of e_is                              realized energy
    e_is = 1 - 2 pi(y_is) + sum_v pi(v)^2 = |onehot(y_is) - pi|^2

pi is the distribution from which token y_is was drawn, over the vocabulary, R_i the rollout's reward. e is the squared
norm of the gradient of log pi(y_is) in the logits: rollouts that were more uncertain up to t count more in B_t.

The formulas are those of verl (`compute_optimal_token_baseline_advantage`, docs/algo/otb.md), whose `sum_pi_squared` is
the last term of e, and whose rewards to go are R_i at every token. Where this rule differs:

- No 1e-8 in the denominator. In verl it pulls B_t to 0 where the policy has been sure so far, and equal rewards leave
  small advantages. Here B_t is the plain mean where all W_jt are 0, and equal rewards cancel exactly.
- e is computed as (sum of pi(v))^2 + sum of pi(v)^2 over v other than y: equal, without a difference of near numbers.
- t counts response tokens, as in verl's `tir_optimal_token_baseline`; other tokens between turns do not count.
- verl can scale W by importance weights. This rule takes the policy of the old log-probs.

Where one rollout alone has a token t, the formula's B_t is its own reward. With `tail = zero` it is 0 there, verl's
default (`handle_zero_tail`): the tail of a longest rollout has advantage R_i, and so has a group of one.

Cost: one more product of the states with the LM head, 2 T V d operations in the policy's dtype for T tokens, and the
memory of a chunk (`credit.captured`). For 16 x 8k tokens, V = 152k and d = 3584 that is 1.4e14 operations.
"""

import torch
from torch.nn.utils.rnn import pad_sequence

from openrlhf_shear.credit.captured import LMHead
from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs
from openrlhf_shear.transport.copies import to_cpu, to_device


class OtbRule(WithKnobs, CreditRule):
    """Rule of the formulas above; advantages are in units of the reward, and are not divided by a deviation.

    A rollout without a reward gets advantage 0, and no baseline includes it.
    """

    name = "otb"
    needs = frozenset({"source_states", "lm_head", "token_ids"})
    makes_advantages = True

    def credit(self, group: RolloutGroup) -> Credit:
        advantages = [torch.zeros(n) for n in group.lengths]
        rated = [i for i in group.rated if group.lengths[i]]
        if not rated:
            return Credit(advantages=advantages)
        rows = to_cpu(energies(group.lm_head, group.source_states[i], group.token_ids[i]) for i in rated)
        there = pad_sequence([torch.ones(len(row)) for row in rows], batch_first=True).double()
        energy = pad_sequence([row.cumsum(0) for row in rows], batch_first=True)
        shares = torch.where(energy.sum(0) > 0, energy, there)
        shares /= shares.sum(0)
        rewards = torch.tensor([group.rewards[i] for i in rated], dtype=torch.float64)
        values = (rewards[:, None] - rewards) @ shares  # R_i - B_t
        if self.config.tail == "zero":
            values = torch.where(there.sum(0) == 1, rewards[:, None], values)
        for i, row in zip(rated, values, strict=True):
            advantages[i] = row[: group.lengths[i]].float()
        return Credit(metrics={"energy": torch.cat(rows).mean().item()}, advantages=advantages)


def energies(head: LMHead, states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return e of each token, (T,) float64 on the states' device, given its source state (T, d) and its id (T,).

    All four tokens have probability 1/4, so e is 1 - 2/4 + 4/16:

    >>> energies(LMHead(torch.zeros(4, 2)), torch.ones(1, 2), torch.tensor([3])).item()
    0.75
    """
    parts, ids = [], to_device(ids, states.device)
    for tokens, log_probs in head.chunks(states):
        others = log_probs.exp().scatter_(1, ids[tokens, None], 0.0)
        parts.append((others.sum(1).square() + others.square().sum(1)).double())
    return torch.cat(parts)
