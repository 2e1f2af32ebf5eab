"""VPPO: verifiable prefix policy optimization (Liu et al. 2026, arXiv 2601.18984), a rule that makes advantages.

    R_it = 1 if rollout i is correct; else alpha for t < P_i, else 0
    A_it = R_it - the group's mean of R_i           R_i: the mean of R_it over the rollout
    P_i  = the first token of the first wrong step, less floor(shorten T_i), at least 0

A step is wrong if the process reward model's probability that it is right is below `threshold`. With `relu` no prefix
has advantages below 0 (for models that are tuned already). Prefixes are cut short, or the policy learns to write many
small steps. We found no code by the authors: formulas and defaults are those of a public reading of the paper
(equations 6 to 8). What differs here:

- The paper's best cut is the prompt's length, which no rule knows. Ours is its second, 10% of the response.
- A rollout in which no wrong step is found has no prefix: our choice, as we could not read the paper's.
"""

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup, StepScores
from openrlhf_shear.credit.rules import WithKnobs


class VppoRule(WithKnobs, CreditRule):
    """Rule of the formulas above. Rollouts without a reward get advantages of 0, and no mean includes them."""

    name = "vppo"
    needs = frozenset({"prm_scores"})
    makes_advantages = True

    def credit(self, group: RolloutGroup) -> Credit:
        knobs, rated = self.config, [i for i, correct in enumerate(group.correct) if correct is not None]
        prefixes = [0 if group.correct[i] else self._prefix(group.prm_scores[i], group.lengths[i]) for i in rated]
        shares = [p / max(group.lengths[i], 1) for i, p in zip(rated, prefixes, strict=True)]
        means = [1.0 if group.correct[i] else knobs.alpha * share for i, share in zip(rated, shares, strict=True)]
        baseline = sum(means) / max(len(means), 1)
        advantages = [torch.zeros(n) for n in group.lengths]
        for i, prefix in zip(rated, prefixes, strict=True):
            advantages[i] += float(group.correct[i]) - baseline
            good = knobs.alpha - baseline
            advantages[i][:prefix] = max(good, 0.0) if knobs.relu else good
        wrong = [share for i, share in zip(rated, shares, strict=True) if not group.correct[i]]
        return Credit(metrics={"prefix": sum(wrong) / len(wrong)} if wrong else {}, advantages=advantages)

    def _prefix(self, scores: StepScores, length: int) -> int:
        """Return the number of tokens that an incorrect rollout of this length is praised for."""
        wrong = (scores.scores < self.config.threshold).nonzero().flatten().tolist()
        if not wrong:
            return 0
        start = int(scores.ends[wrong[0] - 1]) + 1 if wrong[0] else 0
        return max(start - int(self.config.shorten * length + 1e-9), 0)
