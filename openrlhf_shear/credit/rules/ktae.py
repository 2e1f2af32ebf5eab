"""KTAE (Sun et al. 2025, arXiv 2505.16826): GRPO plus the association of each token with right and wrong answers.

    A_it = A_i + scale (2 sigmoid(S D) - 1)                     A_i: GRPO's advantage of rollout i
    S = (F + IG) / 2                                            strength of the association
    F = exp(-2 p), or 0 if p = 1                                p: Fisher's exact test, two-sided
    IG = H(Y) - H(Y | X)                                        information gain in bits
    D = asin sqrt(a / n) - asin sqrt(b / m) + frequency (f / (g + 1e-5) - g / (f + 1e-5))

S and D are those of the token's id in the group. a of the n correct and b of the m incorrect rollouts contain the id; X
is whether a rollout contains it, and Y the rollout's outcome. f is BM25's term frequency of the id in the correct
rollouts, joined, and g in the incorrect ones, with k = 2 and b = 0.5:

    f = 3 c / (c + 1 + L / L_mean)                              c: the id's share of the L tokens on that side
                                                                L_mean: mean of both sides' L

This is the authors' code (xiaolizh1/KTAE, `compute_key_tokens.py` and `core_algos.py`), which differs from the paper:

- The paper prints the probability of the observed table for p, sigmoid - 1/2 (half our scale), and no division in S.
- Its scripts weigh IG twice, which the code does not read. A reward above 0 is correct there.
- Its float32 misses p = 1 for many tables, and F is then exp(-2); equally probable tables can differ. We count exactly.
- It gives Qwen2.5's token 151643 (end or padding) the value 0. A rule does not know special tokens, so all count.

An id that only one side has is divided by 1e-5, so it usually gets a value near +-scale, however rare it is.

The counts need whole groups, so this is a `CreditRule`. It makes advantages: what it adds does not depend on A_i.
"""

import math
from functools import lru_cache

import torch

from openrlhf_shear.credit.baselines import outcome_advantages
from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.rules import WithKnobs

_TINY = 1e-5  # added to term frequencies that divide


class KtaeRule(WithKnobs, CreditRule):
    """Rule of the formulas above; signs may change where `scale` exceeds |A_i|.

    A group whose correct rollouts, or whose incorrect rollouts, have no tokens gets GRPO's advantages. Rollouts without
    a reward get advantages of 0, and count nowhere.
    """

    name = "ktae"
    needs = frozenset({"token_ids"})
    makes_advantages = True

    def credit(self, group: RolloutGroup) -> Credit:
        outcomes = zip(outcome_advantages(group.rewards), group.lengths, strict=True)
        advantages = [a.expand(n).clone() for a, n in outcomes]
        rated = [i for i, correct in enumerate(group.correct) if correct is not None]
        ids = [group.token_ids[i] for i in rated]
        values = self.values(ids, [group.correct[i] for i in rated])
        for i, added in zip(rated, values, strict=True):
            advantages[i] += added.float()
        size = torch.cat([torch.zeros(1), *values]).abs().sum().item() / max(sum(map(len, values)), 1)
        return Credit(metrics={"added": size}, advantages=advantages)

    def values(self, token_ids: list[torch.Tensor], correct: list[bool]) -> list[torch.Tensor]:
        """Return what is added to each token's advantage, float64 (T_i,), given (T_i,) int64 and known outcomes."""
        lengths, right = [len(ids) for ids in token_ids], torch.tensor(correct, dtype=torch.bool)
        sides = [
            sum(n for n, is_right in zip(lengths, correct, strict=True) if is_right is side) for side in (True, False)
        ]
        if not all(sides):
            return [torch.zeros(n, dtype=torch.float64) for n in lengths]
        ids, number = torch.unique(torch.cat(token_ids), return_inverse=True)
        rollout = torch.repeat_interleave(torch.tensor(lengths))
        counts = torch.bincount(number * len(lengths) + rollout, minlength=len(ids) * len(lengths))
        counts = counts.view(len(ids), len(lengths))  # of each id in each rollout
        a, b = ((counts[:, side] > 0).sum(1) for side in (right, ~right))
        n, m = int(right.sum()), int((~right).sum())
        f, g = (
            term_frequency(counts[:, side].sum(1) / length, 2 * length / sum(sides))
            for side, length in zip((right, ~right), sides, strict=True)
        )
        config = self.config
        fisher, gain = associations(n, m)[:, a, b]
        strength = (fisher + gain) / 2
        direction = (a / n).double().sqrt().asin() - (b / m).double().sqrt().asin()
        direction += config.frequency * (f / (g + _TINY) - g / (f + _TINY))
        return list((config.scale * torch.tanh(strength * direction / 2))[number].split(lengths))


def term_frequency(share: torch.Tensor, length: float) -> torch.Tensor:
    """Return BM25's saturated frequency of shares of a text that is `length` times as long as the mean."""
    share = share.double()
    return 3 * share / (share + 1 + length)


@lru_cache(maxsize=256)
def associations(right: int, wrong: int) -> torch.Tensor:
    """Return F and IG of ids in a of `right` and b of `wrong` rollouts: (2, right + 1, wrong + 1) float64, by a and b.

    >>> associations(2, 2)[:, 2, 0].tolist()  # p = 1/3; the id tells right from wrong
    [0.513417119032592, 1.0]
    """
    found = torch.empty(2, right + 1, wrong + 1, dtype=torch.float64)
    for a in range(right + 1):
        for b in range(wrong + 1):
            ways = [math.comb(right, k) * math.comb(wrong, a + b - k) for k in range(a + b + 1)]
            p = sum(way for way in ways if way <= ways[a]) / sum(ways)
            found[0, a, b] = math.exp(-2 * p) if p < 1 else 0.0
            split = _bits(a, b) + _bits(right - a, wrong - b)
            found[1, a, b] = (_bits(right, wrong) - split) / (right + wrong)
    return found


def _bits(x: int, y: int) -> float:
    """Return (x + y) times the entropy of x : y, in bits."""
    return -sum(z * math.log2(z / (x + y)) for z in (x, y) if z)
