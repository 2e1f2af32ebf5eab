"""What a rule's token advantages are compared with: the same credit in another place, or spread evenly.

Legend: N rollouts of a step, T_i response tokens of rollout i.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Rows = Sequence[torch.Tensor]  # N of (T_i,)


def shuffled(advantages: Rows, base: Sequence[float], seed: int) -> list[torch.Tensor]:
    """Each rollout's token advantages in a random order: the same credit, noise for a place."""
    generator = torch.Generator().manual_seed(seed)
    return [row[torch.randperm(len(row), generator=generator)] for row in advantages]


def mass_matched(advantages: Rows, base: Sequence[float], seed: int) -> list[torch.Tensor]:
    """Uniform credit of the same total: rollouts with a negative advantage are all scaled by one constant, such that
    their tokens' advantages sum to the rule's, and those with a positive one by another.

    A rule that leaves correct rollouts alone is compared with uniform credit that blames less (or more), and with
    nothing else.

    Example: base -1 for rollouts of 2 and 2 tokens, the rule gives [0, -1] and [-0.5, -0.5] -> -0.5 everywhere.

    Args:
        advantages: what the rule made of them.
        base: N, the rollouts' advantages before the rule.
    """
    scales = {}
    for negative in (False, True):
        side = [i for i, value in enumerate(base) if value != 0 and (value < 0) == negative]
        before = sum(base[i] * len(advantages[i]) for i in side)
        scales[negative] = sum(advantages[i].sum().item() for i in side) / before if before else 1.0
    return [torch.full_like(row, value * scales[value < 0]) for row, value in zip(advantages, base, strict=True)]


CONTROLS = {"shuffled": shuffled, "matched": mass_matched}
