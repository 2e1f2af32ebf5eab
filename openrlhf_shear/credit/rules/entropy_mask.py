"""Entropy mask, the 80/20 rule (Wang et al. 2025, arXiv 2506.01939): only tokens of high entropy are trained on.

    w_t = 1 where H_t >= tau, else 0        A~_t = A w_t

H_t is the entropy at token t in nats. tau is the k-th largest entropy of the group's tokens, k = ceil(fraction N) of N.
The loss still divides by all tokens, so the gradient is the masked sum of GRPO's.

Three public versions take the top 20% of other sets of tokens, by the current policy's entropies in the update:

- The authors' code (Shenzhi-Wang/Beyond-the-80-20-Rule-RLVR, `get_global_entropy_top_mask`) takes those of a
  micro-batch, exactly k of them whatever the ties. It averages the loss over the k tokens: 1 / fraction times ours.
- TRL (`top_entropy_quantile`, `get_high_entropy_mask`) takes those of the micro-batches of all processes, from an
  interpolated quantile on. It divides by all tokens, as we do.
- ms-swift does as TRL within a process.

Their masks change with the size of a micro-batch. So this rule is a `CreditRule`: it acts on whole groups, by the
entropies of the policy that sampled them. A group's tokens compete only with each other; in the public versions, an
uncertain prompt can take the share of another.
"""

import math

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs


class EntropyMaskRule(WithKnobs, CreditRule):
    """Rule of the formula above; no advantage changes its sign, and a fraction of 1 is GRPO.

    Ties are kept: equal entropies everywhere are GRPO. Tokens of rollouts without a reward do not count in N.
    """

    name = "entropy_mask"
    needs = frozenset({"entropies"})

    def credit(self, group: RolloutGroup) -> Credit:
        high, tau = high_entropies(group, self.config.fraction)
        return Credit([row.float() for row in high], {} if tau is None else {"threshold": tau})


def high_entropies(group: RolloutGroup, fraction: float) -> tuple[list[torch.Tensor], float | None]:
    """Return G masks (T_i,) of entropies of at least tau, and tau, given by this fraction of the rated tokens.

    Without a rated token all are high, and tau is None.
    """
    rated = [h for h, correct in zip(group.entropies, group.correct, strict=True) if correct is not None]
    tokens = torch.cat([torch.empty(0), *rated])
    if not len(tokens):
        return [torch.ones(n, dtype=torch.bool) for n in group.lengths], None
    tau = tokens.topk(tokens_to_train(fraction, len(tokens))).values[-1]
    return [h >= tau for h in group.entropies], tau.item()


def tokens_to_train(fraction: float, tokens: int) -> int:
    """Return ceil(fraction * tokens), at least 1, as if the fraction were the decimal that its user wrote.

    >>> tokens_to_train(0.2, 11), tokens_to_train(0.55, 100)  # in float64, 0.55 * 100 is 55.00000000000001
    (3, 55)
    """
    return max(1, math.ceil(fraction * tokens - 1e-9))
