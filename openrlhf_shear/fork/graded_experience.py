"""Advantages where some rewards failed: those rollouts get none, and count in no group statistic."""

from __future__ import annotations

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from openrlhf_shear.fork.samples import FAILED


class GradedExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker for batches in which rewards may have failed.

    A failed rollout stays in the batch with advantage 0, as a rollout of an unmixed group does; a KL or entropy loss,
    which needs no reward, still sees it. Exact for `group_norm`, `rloo` and `dr_grpo`. The estimators that whiten
    advantages over the batch (`gae`, `reinforce`, `reinforce_baseline`) take its group's mean reward into that.
    """

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        if FAILED not in experiences[0].info:
            return super().compute_advantages_and_returns(experiences)
        order = torch.tensor([i for experience in experiences for i in experience.index])
        sizes = [len(experience.index) for experience in experiences]
        group_size, estimator = self.args.rollout.n_samples_per_prompt, self.args.algo.advantage.estimator
        failed = _by_prompt(torch.cat([e.info[FAILED].flatten().bool() for e in experiences]), order)
        if failed.any():
            rewards = _by_prompt(torch.cat([e.rewards.float() for e in experiences]), order)
            filled = fill_failed(rewards, failed, group_size)
            for experience, values in zip(experiences, filled[order].split(sizes), strict=True):
                experience.rewards = experience.info["reward"] = values
        experiences = super().compute_advantages_and_returns(experiences)
        if failed.any():
            # The rewards are those after length penalties now.
            rewards = _by_prompt(torch.cat([e.rewards for e in experiences]), order)
            change = correction(rewards, failed, group_size, estimator, self.args.reward.clip_range)
            parts = zip(experiences, change[order].split(sizes), failed[order].split(sizes), strict=True)
            for experience, delta, out in parts:
                mask = experience.action_mask.to(experience.advantages.dtype)
                experience.advantages = (experience.advantages + delta[:, None] * mask) * ~out[:, None]
        return experiences


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


def _by_prompt(values: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Back from rank order to the order of prompts: `values[k]` belongs to rollout `order[k]`."""
    sorted_values = torch.empty_like(values)
    sorted_values[order] = values
    return sorted_values
