"""Length penalties and group baselines of rewards, some of which may have failed.

Legend: N rollouts; the `group_size` rollouts of a prompt are neighbours.
"""

from collections.abc import Sequence

import torch

ESTIMATORS = ("group_norm", "rloo", "dr_grpo")  # estimators with a group's baseline, and without whitening


def overlong_penalty(lengths: torch.Tensor, limits: torch.Tensor, buffer: float, factor: float = 1.0) -> torch.Tensor:
    """Return (N,) float32 penalties, at most 0: `factor` times DAPO's soft overlong punishment.

    (Yu et al. 2025, equation 13.) The penalty is 0 up to `buffer` tokens before a response's limit, -factor at the
    limit, and linear in between. Worked example: limit 1748, buffer 512: a response of 1236 tokens costs 0, of 1492
    tokens 0.5, of 1748 tokens 1.

    Args:
        lengths: (N,) tokens that the policy wrote.
        limits: (N,) tokens that the policy could have written.
    """
    exceeding = lengths.float() - (limits.float() - buffer)
    return -exceeding.clamp(0.0, buffer) / buffer * factor


def fill_failed(rewards: torch.Tensor, failed: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return (N,) rewards; a failed one becomes the mean of its group's valid rewards, else of the batch's, else 0."""
    valid = ~failed.view(-1, group_size)
    groups = rewards.view(-1, group_size)
    overall = rewards[~failed].mean() if valid.any() else rewards.new_zeros(())
    count = valid.sum(1, keepdim=True)
    means = torch.where(count > 0, (groups * valid).sum(1, keepdim=True) / count.clamp(min=1), overall)
    return torch.where(valid, groups, means).reshape(-1)


def group_advantages(
    rewards: torch.Tensor, group_size: int, estimator: str = "group_norm", failed: torch.Tensor | None = None
) -> torch.Tensor:
    """Return (N,) advantages by OpenRLHF's formulas, for any real rewards; GRPO's are (r - mean r) / (std r + 1e-9).

    Equal rewards in a group give exactly 0. (In float32 the mean of equal rewards such as 0.1 is not quite 0.1.
    OpenRLHF divides the difference by a standard deviation of the same size.)

    Args:
        estimator: one of `ESTIMATORS`.
        failed: (N,) bool: rewards that are only placeholders. Their advantages are 0, and no baseline includes them.
    """
    groups = rewards.view(-1, group_size)
    advantages = _baselined(groups, estimator)
    valid = torch.ones_like(groups, dtype=torch.bool) if failed is None else ~failed.view(-1, group_size)
    for group, usable, row in zip(groups, valid, advantages, strict=True):
        rated = group[usable]
        if not usable.all():
            row[~usable] = 0
            row[usable] = _baselined(rated[None], estimator)[0]
        if (rated == rated[:1]).all():
            row[:] = 0
    return advantages.reshape(-1)


def outcome_advantages(rewards: Sequence[float]) -> torch.Tensor:
    """Return GRPO's advantages (G,) float32 of one group, given its rewards; NaN, a failed reward, gets 0.

    >>> outcome_advantages([1.0, 0.0, float("nan")]).tolist()
    [0.7071067690849304, -0.7071067690849304, 0.0]
    """
    values = torch.tensor(rewards, dtype=torch.float32)
    return group_advantages(values, len(values), failed=values.isnan())


def _baselined(groups: torch.Tensor, estimator: str) -> torch.Tensor:
    """Return the advantages of each row of (groups, rollouts a group); a row of one rollout gets 0."""
    if groups.shape[1] < 2:
        return torch.zeros_like(groups)
    centred = groups - groups.mean(1, keepdim=True)
    if estimator == "group_norm":
        return centred / (groups.std(1, keepdim=True) + 1e-9)
    if estimator == "rloo":
        others = groups.sum(1, keepdim=True) - groups
        return groups - others / (groups.shape[1] - 1)
    assert estimator == "dr_grpo", f"{estimator} has no group baseline"
    return centred
