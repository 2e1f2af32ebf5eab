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
    the negative token advantages sum to the rule's, and those with a positive one by another.

    A rule that leaves correct rollouts alone is compared with uniform credit that blames less (or more), and with
    nothing else.

    Example: base -1 for rollouts of 2 and 2 tokens, the rule gives [0, -1] and [-0.5, -0.5] -> -0.5 everywhere.

    Args:
        advantages: what the rule made of them.
        base: N, the rollouts' advantages before the rule.
    """
    tokens, plain = torch.cat(list(advantages)).double(), torch.tensor(base, dtype=torch.float64)
    lengths = torch.tensor([len(row) for row in advantages])

    def scale(side) -> float:
        before = (side(plain) * lengths).sum().item()
        return side(tokens).sum().item() / before if before else 0.0

    blame, praise = scale(lambda values: values.clamp(max=0)), scale(lambda values: values.clamp(min=0))
    return [
        torch.full_like(row, value * (blame if value < 0 else praise))
        for row, value in zip(advantages, base, strict=True)
    ]


CONTROLS = {"shuffled": shuffled, "matched": mass_matched}
