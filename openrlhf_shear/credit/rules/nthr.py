"""NTHR: negative token hidden reward (Deng et al. 2025, arXiv 2505.18830): less blame where it would hurt siblings.

    g_t   = onehot(y_t) - pi_t                                  prediction error, over the vocabulary
    s_t   = sum over all tokens k of correct rollouts of <g_k, g_t> <h_k, h_t>
    tau   = beta min over correct rollouts i of the mean of s_t over its tokens
    A~_t  = eta A where the rollout is incorrect, A < 0 and s_t > tau; else A
    eta   = 2 |1/2 - p|                                         p: share of correct rollouts in the group

pi_t is the distribution from which token y_t was drawn, and h_t the state that made it. The gradient of log pi(y_t) in
the LM head's matrix is g_t h_t^T. So s_t is its inner product with the gradient of all correct rollouts' log-probs:
where it is large, blame of y_t makes them less likely. With M = sum_k g_k h_k^T, (V, d), s_t is g_t^T M h_t.

These are section 5 of the paper, with beta and eta of its section 7.3. We found no code by the authors. Choices:

- g has only the entries at ids that the group's responses contain, as the authors do to save time (section 7.4).
- The mean of s_t of a correct rollout includes its pairs with itself. The paper's words say "other" correct rollouts,
  of which there may be none; public restatements of its equation sum over all.
- The authors' later THR (arXiv 2510.03669) also changes the credit of correct rollouts, and is another rule.

Cost: the logits of correct rollouts twice, of incorrect ones once, 2 T V d operations each in the policy's dtype, plus
4 T V' d in float32. V' is the number of these ids, some thousands.
"""

from collections.abc import Iterator

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs
from openrlhf_shear.transport.copies import to_cpu, to_device


class NthrRule(WithKnobs, CreditRule):
    """Rule of the formulas above; no advantage changes its sign. Groups of one outcome have weights of 1.

    Rollouts without a reward count nowhere, not even in p.
    """

    name = "nthr"
    needs = frozenset({"source_states", "lm_head", "token_ids"})

    def credit(self, group: RolloutGroup) -> Credit:
        weights, blame = ([torch.ones(n) for n in group.lengths] for _ in range(2))
        right, wrong = ([i for i, outcome in enumerate(group.correct) if outcome is side] for side in (True, False))
        if not any(group.lengths[i] for i in right) or not any(group.lengths[i] for i in wrong):
            return Credit(weights, {}, blame)
        scores, tau = self.scores(group, right, wrong)
        eta = 2 * abs(0.5 - len(right) / (len(right) + len(wrong))) if self.config.eta is None else self.config.eta
        for i in wrong:
            blame[i][scores[i] > tau] = eta
        spared = torch.cat([scores[i] > tau for i in wrong]).float().mean().item()
        return Credit(weights, {"spared": spared, "eta": eta}, blame)

    def scores(self, group: RolloutGroup, right: list[int], wrong: list[int]) -> tuple[dict[int, torch.Tensor], float]:
        """Return s of each token, by rollout (T_i,) float32 on the CPU, and tau."""
        entries = torch.unique(torch.cat([group.token_ids[i] for i in (*right, *wrong)]))
        states = group.source_states[right[0]]
        matrix = torch.zeros(len(entries), states.shape[1], device=states.device)  # M
        for g, h in (pair for i in right for pair in _gradients(group, i, entries)):
            matrix.addmm_(g.T, h)
        products = ([((g @ matrix) * h).sum(1) for g, h in _gradients(group, i, entries)] for i in (*right, *wrong))
        rows = to_cpu(torch.cat([matrix.new_empty(0), *parts]) for parts in products)
        scores = dict(zip((*right, *wrong), rows, strict=True))
        return scores, self.config.beta * min(scores[i].mean().item() for i in right if group.lengths[i])


def _gradients(group: RolloutGroup, i: int, entries: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield g (n, V') and h (n, d) of a few tokens at a time, float32; `entries` (V',) are the ids of g, ascending."""
    states = group.source_states[i]
    places, entries = torch.searchsorted(entries, group.token_ids[i]), to_device(entries, states.device)
    places = to_device(places, states.device)
    for tokens, log_probs in group.lm_head.chunks(states):
        errors = -log_probs[:, entries].exp()
        errors[torch.arange(len(errors), device=states.device), places[tokens]] += 1
        yield errors, states[tokens].float()
