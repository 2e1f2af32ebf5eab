"""Group baselines where some rewards failed: placeholders go through the trainer, and are taken out again here."""

from __future__ import annotations

import torch


def fill_failed(rewards: torch.Tensor, failed: torch.Tensor, group_size: int) -> torch.Tensor:
    """(N,) rewards with the failed ones replaced by the mean of their group's others, or of the batch's, or 0."""
    valid = ~failed.view(-1, group_size)
    groups = rewards.view(-1, group_size)
    overall = rewards[~failed].mean() if valid.any() else rewards.new_zeros(())
    count = valid.sum(1, keepdim=True)
    means = torch.where(count > 0, (groups * valid).sum(1, keepdim=True) / count.clamp(min=1), overall)
    return torch.where(valid, groups, means).reshape(-1)


def correction(
    rewards: torch.Tensor, failed: torch.Tensor, group_size: int, estimator: str, clip: tuple[float, float] | None
) -> torch.Tensor:
    """What to add to each rollout's advantage, computed with placeholders, so that only valid rewards count: (N,).

    Args:
        rewards: (N,) by prompt, placeholders included.
        failed: (N,) bool.
        clip: range that upstream clips the baselined reward to.
    """
    delta = torch.zeros_like(rewards)
    for start in range(0, len(rewards), group_size):
        group = slice(start, start + group_size)
        valid = ~failed[group]
        if not valid.all():
            before = _clipped(_baselined(rewards[group], estimator), clip)
            after = _clipped(_baselined(rewards[group][valid], estimator), clip)
            delta[group][valid] = after - before[valid]
    return delta


def _baselined(rewards: torch.Tensor, estimator: str) -> torch.Tensor:
    """Upstream's formula for one group; 0 for a single rollout, which has nothing to be compared with."""
    if estimator not in ("group_norm", "rloo", "dr_grpo"):
        return torch.zeros_like(rewards)
    if len(rewards) < 2:
        return torch.zeros_like(rewards)
    centred = rewards - rewards.mean()
    if estimator == "group_norm":
        return centred / (rewards.std() + 1e-9)
    return centred * len(rewards) / (len(rewards) - 1) if estimator == "rloo" else centred


def _clipped(values: torch.Tensor, clip: tuple[float, float] | None) -> torch.Tensor:
    return values.clamp(*clip) if clip else values
