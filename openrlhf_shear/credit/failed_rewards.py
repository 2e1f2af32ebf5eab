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
    """What to add to each rollout's advantage, computed by upstream with placeholders, so that only valid rewards
    count, and so that equal rewards give 0: (N,), exactly 0 where upstream is right.

    In float32 the mean of equal rewards such as 0.1 is not quite 0.1, and `group_norm` divides the difference by a
    standard deviation of that size: advantages of up to 7 for rollouts that are alike.

    Args:
        rewards: (N,) by prompt, placeholders included.
        failed: (N,) bool.
        clip: range that upstream clips the baselined reward to.
    """
    groups = rewards.view(-1, group_size)
    before = _clipped(baselined(groups, estimator), clip)
    delta = torch.zeros_like(before)
    for group, out, wrong, change in zip(groups, failed.view(-1, group_size), before, delta, strict=True):
        valid = ~out
        if out.any() or (group == group[0]).all():
            rated = group[valid]
            alike = (rated == rated[:1]).all()
            right = torch.zeros_like(rated) if alike else _clipped(baselined(rated[None], estimator)[0], clip)
            change[valid] = right - wrong[valid]
    return delta.reshape(-1)


def baselined(groups: torch.Tensor, estimator: str) -> torch.Tensor:
    """Upstream's formula for each row of (groups, rollouts a group); 0 for one rollout, and for other estimators."""
    if estimator not in ("group_norm", "rloo", "dr_grpo") or groups.shape[1] < 2:
        return torch.zeros_like(groups)
    centred = groups - groups.mean(1, keepdim=True)
    if estimator == "group_norm":
        return centred / (groups.std(1, keepdim=True) + 1e-9)
    return centred * groups.shape[1] / (groups.shape[1] - 1) if estimator == "rloo" else centred


def _clipped(values: torch.Tensor, clip: tuple[float, float] | None) -> torch.Tensor:
    return values.clamp(*clip) if clip else values
