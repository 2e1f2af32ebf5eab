"""Incorrect rollouts are blamed where they are farther away than is normal at that position.

w_t ~ max(omega_t - mean of the group's correct rollouts' omega within 3 tokens of index t, 0), over its maximum in the
rollout; omega are SHEAR's weights of small windows. Correct rollouts keep weight 1.

SHEAR's weights rise along every rollout, correct ones too, since the distance is symmetric; what is left is the excess.
A rollout that is nowhere farther away than its correct ones, or whose group has none, is not blamed.
"""

from __future__ import annotations

import torch

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import Credit, CreditRule, RolloutGroup, shear_weights

RADIUS = 3  # tokens


class RelativeRule(CreditRule):
    """Blames tokens by their distance beyond that of correct rollouts at the same index."""

    name = "relative"
    needs = frozenset({"hidden_states"})

    def __init__(self, window: int = 4, stride: int = 1, epsilon_rel: float = 0.03):
        self.config = ShearConfig(window=window, stride=stride, epsilon_rel=epsilon_rel)

    def credit(self, group: RolloutGroup) -> Credit:
        omega = [w.cpu() for w in shear_weights(group.hidden_states, group.correct, self.config).weights]
        usual = normal([w for w, correct in zip(omega, group.correct, strict=True) if correct], max(group.lengths))
        weights = [torch.ones(length) for length in group.lengths]
        for i, correct in enumerate(group.correct):
            if correct is False and group.lengths[i]:
                beyond = (omega[i] - usual[: group.lengths[i]]).clamp(min=0)
                weights[i] = beyond / beyond.max().clamp(min=1e-6)
        return Credit(weights)


def normal(rows: list[torch.Tensor], length: int) -> torch.Tensor:
    """(length,): the rows' mean within `RADIUS` of each index, with the last known value beyond their ends; infinite
    without rows.
    """
    if not any(len(row) for row in rows):
        return torch.full((length,), torch.inf)
    sums, counts = torch.zeros(2, length + 2 * RADIUS)
    for row in rows:
        for shift in range(2 * RADIUS + 1):
            kept = row[: max(length + 2 * RADIUS - shift, 0)]
            sums[shift : shift + len(kept)] += kept
            counts[shift : shift + len(kept)] += 1
    mean = (sums / counts.clamp(min=1))[RADIUS : RADIUS + length]
    known = counts[RADIUS : RADIUS + length] > 0
    last = int(known.nonzero()[-1])
    return torch.where(torch.arange(length) <= last, mean, mean[last])
