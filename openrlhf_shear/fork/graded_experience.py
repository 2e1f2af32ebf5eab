"""Advantages where some rewards failed: those rollouts get none, and count in no group statistic."""

from __future__ import annotations

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from openrlhf_shear.credit.failed_rewards import correction, fill_failed
from openrlhf_shear.fork.samples import FAILED


class GradedExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker for batches in which rewards may have failed, or be equal (`credit.failed_rewards`).

    A failed rollout stays in the batch with advantage 0, as a rollout of an unmixed group does; a KL or entropy loss,
    which needs no reward, still sees it. Exact for `group_norm`, `rloo` and `dr_grpo`. The estimators that whiten
    advantages over the batch (`gae`, `reinforce`, `reinforce_baseline`) take its group's mean reward into that.
    """

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        order = torch.tensor([i for experience in experiences for i in experience.index])
        sizes = [len(experience.index) for experience in experiences]
        group_size, estimator = self.args.rollout.n_samples_per_prompt, self.args.algo.advantage.estimator
        failed = _by_prompt(torch.cat([failed_rows(e) for e in experiences]), order)
        if failed.any():
            rewards = _by_prompt(torch.cat([e.rewards.float() for e in experiences]), order)
            filled = fill_failed(rewards, failed, group_size)
            for experience, values in zip(experiences, filled[order].split(sizes), strict=True):
                experience.rewards = experience.info["reward"] = values
        experiences = super().compute_advantages_and_returns(experiences)
        # The rewards are those after length penalties now.
        rewards = _by_prompt(torch.cat([e.rewards for e in experiences]), order)
        change = correction(rewards, failed, group_size, estimator, self.args.reward.clip_range)
        if failed.any() or change.any():
            parts = zip(experiences, change[order].split(sizes), failed[order].split(sizes), strict=True)
            for experience, delta, out in parts:
                mask = experience.action_mask.to(experience.advantages.dtype)
                experience.advantages = (experience.advantages + delta[:, None] * mask) * ~out[:, None]
        return experiences


def failed_rows(experience: Experience) -> torch.Tensor:
    """(B,) bool: only a placeholder is there."""
    if FAILED in experience.info:
        return experience.info[FAILED].flatten().bool()
    return torch.zeros(len(experience.index), dtype=torch.bool)


def _by_prompt(values: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Back from rank order to the order of prompts: `values[k]` belongs to rollout `order[k]`."""
    sorted_values = torch.empty_like(values)
    sorted_values[order] = values
    return sorted_values
