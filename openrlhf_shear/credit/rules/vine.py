"""VinePPO (Kazemnejad et al. 2024, arXiv 2410.01679): values of prefixes by Monte Carlo, a rule that makes advantages.

    A_t = V(s_k+1) - V(s_k)          for every token t of step k, then whitened over all response tokens

s_k is the prompt and the response before step k. V(s_k) is the mean reward of `samples` continuations of s_k by the
policy. At the end of the response it is the rollout's own reward, so a rollout's steps sum to its reward less V(s_0).

The formula and the defaults (9 samples, whitening) are those of the authors' code and its configurations of MATH
(McGill-NLP/VinePPO, `math_episode_generator_with_mc_advantages.py`), which also gives equal prefixes one value. What
differs here:

- A step has `every` tokens. The authors' steps are parts of a mathematical solution, which the lab's tasks do not have.
- They give a fixed reward to a response that the token limit cut off. Here the task judges it like any other.

In the credit lab this rule is a ceiling: with 128 rollouts of 100 tokens it samples over 4000 more at every step. Only
the lab gives continuations, so training refuses this rule.
"""

from collections.abc import Sequence

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs
from openrlhf_shear.credit.rules.pure import whitened


class VineRule(WithKnobs, CreditRule):
    """Rule of the formula above, which does not keep signs. A rollout without a reward gets advantages of 0."""

    name = "vine"
    needs = frozenset({"continuations", "token_ids"})
    makes_advantages = True

    def credit(self, group: RolloutGroup) -> Credit:
        rated = group.rated
        every, ids = self.config.every, {i: group.token_ids[i].tolist() for i in rated}
        prefixes = {i: [tuple(row[:start]) for start in range(0, len(row), every)] for i, row in ids.items()}
        places: dict[tuple[int, ...], tuple[int, int]] = {}
        for i in rated:
            for prefix in prefixes[i]:
                places.setdefault(prefix, (i, len(prefix)))
        values = dict(zip(places, group.continuations(list(places.values()), self.config.samples), strict=True))
        advantages = [torch.zeros(length) for length in group.lengths]
        for i in rated:
            path = torch.tensor([*(values[prefix] for prefix in prefixes[i]), group.rewards[i]])
            advantages[i] = path.diff()[torch.arange(group.lengths[i]) // every]
        mean = sum(values.values()) / len(values) if values else 0.0
        return Credit(metrics={"value": mean, "places": float(len(places))}, advantages=advantages)

    def over_batch(self, advantages: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return whitened(advantages) if self.config.whiten else advantages
