"""PRM-based advantage reshaping: `A~_t = A_t p_t` where A_t > 0, `A_t (1 - p_t)` where A_t < 0.

p_t is the process reward model's probability that the step of token t is right; tokens behind the last scored step take
that step's. The SHEAR paper names this baseline without a formula: this is our reading, the one that keeps every sign.
"""

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup, StepScores


class PrmReshapeRule(CreditRule):
    """As above; 1 for every token of a rollout without a scored step."""

    name = "prm_reshape"
    needs = frozenset({"prm_scores"})

    def credit(self, group: RolloutGroup) -> Credit:
        filled = [spread(scores, n) for scores, n in zip(group.prm_scores, group.lengths, strict=True)]
        ones = [torch.ones(n) for n in group.lengths]
        positive = [one if p is None else p for p, one in zip(filled, ones, strict=True)]
        negative = [one if p is None else 1 - p for p, one in zip(filled, ones, strict=True)]
        scored = sum(p is not None for p in filled)
        return Credit(positive, {"unscored_rollouts": 1 - scored / len(filled)}, negative)


def spread(scores: StepScores, length: int) -> torch.Tensor | None:
    """Each token's step score, (T,); None without one.

    Example: ends 1 and 3, scores 0.2 and 0.9, 6 tokens -> 0.2, 0.2, 0.9, 0.9, 0.9, 0.9.
    """
    if not len(scores.scores):
        return None
    step = torch.bucketize(torch.arange(length), scores.ends)
    return scores.scores[step.clamp(max=len(scores.scores) - 1)]
