"""PRM-based advantage reshaping: `A~_t = A_t p_t` where A_t > 0, `A_t (1 - p_t)` where A_t < 0.

p_t is the process reward model's probability that the step of token t is right; tokens after the last scored step have
that step's probability. The SHEAR paper names this baseline without a formula. This formula is our reading, in which
every advantage keeps its sign.
"""

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup, StepScores


class PrmReshapeRule(CreditRule):
    """Rule of the formula above; tokens of a rollout without a scored step have weight 1."""

    name = "prm_reshape"
    needs = frozenset({"prm_scores"})

    def credit(self, group: RolloutGroup) -> Credit:
        filled = [spread(scores, n) for scores, n in zip(group.prm_scores, group.lengths, strict=True)]
        unscored = [torch.ones(n) for n in group.lengths]
        positive = [unit if p is None else p for p, unit in zip(filled, unscored, strict=True)]
        negative = [unit if p is None else 1 - p for p, unit in zip(filled, unscored, strict=True)]
        scored = sum(p is not None for p in filled)
        return Credit(positive, {"unscored_rollouts": 1 - scored / len(filled)}, negative)


def spread(scores: StepScores, length: int) -> torch.Tensor | None:
    """Return the score of each token's step, (T,); None if no step is scored.

    Example: ends 1 and 3, scores 0.2 and 0.9, 6 tokens -> 0.2, 0.2, 0.9, 0.9, 0.9, 0.9.
    """
    if not len(scores.scores):
        return None
    step = torch.bucketize(torch.arange(length), scores.ends)
    return scores.scores[step.clamp(max=len(scores.scores) - 1)]
