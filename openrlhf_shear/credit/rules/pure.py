"""PURE: min-form credit assignment (Cheng et al. 2025, arXiv 2504.15275), a rule that makes advantages.

    r_k = 2 p_k - 1                          step k's process reward, p_k its probability of being right
    w   = softmax(-r / T)                    over the rollout's steps: nearly all weight on the worst of them
    r*_t = w_k r_k at the token that ends step k, plus the verifiable reward at the last token, 0 elsewhere
    R_t = sum of r* from t on
    b_i = sum over the other rollouts j and their tokens of R_jt / ((G - 1) W)
    A_it = R_it - b_i, then whitened over all response tokens of the step

W is the width to which the authors' code pads responses. The formulas are those of that code. For process reward models
other than theirs, the step from a probability to a reward in [-1, 1] is our reading.
"""

from collections.abc import Sequence

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup, StepScores
from openrlhf_shear.credit.rules import WithKnobs

_TINY = 1e-8  # added to the variance


class PureRule(WithKnobs, CreditRule):
    """Rule of the formulas above.

    A rollout without a reward gets advantage 0, and no baseline includes it. A rollout without a scored step has the
    verifiable reward alone.
    """

    name = "pure"
    needs = frozenset({"prm_scores"})
    makes_advantages = True

    def credit(self, group: RolloutGroup) -> Credit:
        width = self.config.width or max(group.lengths)
        rated = group.rated
        returns = [
            self._returns(scores, reward, length)
            for scores, reward, length in zip(group.prm_scores, group.rewards, group.lengths, strict=True)
        ]
        sums = {i: returns[i].sum() for i in rated}
        total, others = sum(sums.values()), len(rated) - 1
        advantages = [torch.zeros(length) for length in group.lengths]
        for i in rated:
            baseline = (total - sums[i]) / (others * width) if others else 0.0
            advantages[i] = returns[i] - baseline
        worst = [scores.scores.min().item() for scores in group.prm_scores if len(scores.scores)]
        return Credit(metrics={"worst_step": sum(worst) / len(worst)} if worst else {}, advantages=advantages)

    def over_batch(self, advantages: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return whitened(advantages)

    def _returns(self, scores: StepScores, reward: float, length: int) -> torch.Tensor:
        rewards = torch.zeros(length)
        if not length:
            return rewards
        process = 2 * scores.scores - 1
        rewards[scores.ends] = torch.softmax(-process / self.config.temperature, 0) * process
        rewards[-1] += self.config.verifiable_coef * reward
        return rewards.flip(0).cumsum(0).flip(0)


def whitened(advantages: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Scale to mean 0 and (unbiased) variance 1 over all tokens; of fewer than two tokens, subtract the mean only."""
    tokens = torch.cat([*advantages, torch.empty(0)])
    mean = tokens.mean() if len(tokens) else tokens.sum()
    scale = (tokens.var() + _TINY).rsqrt() if len(tokens) > 1 else 1.0
    return [(values - mean) * scale for values in advantages]
