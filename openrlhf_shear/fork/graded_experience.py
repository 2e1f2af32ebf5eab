"""Advantages where some rewards failed: those rollouts get none, and count in no group statistic."""

from __future__ import annotations

import torch
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.credit.baselines import ESTIMATORS, fill_failed, group_advantages
from openrlhf_shear.fork.samples import FAILED

logger = init_logger(__name__)


class GradedExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker for batches in which rewards may have failed, or be equal (`credit.baselines`).

    A failed rollout stays in the batch with advantage 0, as a rollout of an unmixed group does; a KL or entropy loss,
    which needs no reward, still sees it. Exact for the estimators with a group baseline, which are computed here; those
    that whiten advantages over the batch (`gae`, `reinforce`, `reinforce_baseline`) are upstream's, and take the mean
    reward of the failed rollout's group into that.
    """

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        order = torch.tensor([i for experience in experiences for i in experience.index])
        sizes = [len(experience.index) for experience in experiences]
        failed = _by_prompt(torch.cat([failed_rows(e) for e in experiences]), order)
        if failed.any():
            rewards = _by_prompt(torch.cat([e.rewards.float() for e in experiences]), order)
            filled = fill_failed(rewards, failed, self.args.rollout.n_samples_per_prompt)
            for experience, values in zip(experiences, filled[order].split(sizes), strict=True):
                experience.rewards = experience.info["reward"] = values
        if self.advantage_estimator in ESTIMATORS:
            self._with_group_baseline(experiences, order, failed)
        else:
            experiences = super().compute_advantages_and_returns(experiences)
        for experience, out in zip(experiences, failed[order].split(sizes), strict=True):
            if out.any():
                experience.advantages = experience.advantages * ~out[:, None]
        return experiences

    def _with_group_baseline(self, experiences: list[Experience], order: torch.Tensor, failed: torch.Tensor) -> None:
        """As upstream: length penalties, the baseline, then a KL reward where there is one, and sums from each token on
        (discounts are not for these estimators).
        """
        args, size = self.args, self.args.rollout.n_samples_per_prompt
        for experience in experiences:
            experience.rewards = experience.rewards.to(torch.promote_types(experience.rewards.dtype, torch.float32))
        if args.algo.advantage.gamma != 1.0:  # upstream's words, once
            logger.warning(f"gamma is set to 1.0 for {self.advantage_estimator}")
            args.algo.advantage.gamma = 1.0
        apply_length_penalties(experiences, args)
        rewards = _by_prompt(torch.cat([experience.rewards for experience in experiences]), order)
        spread = rewards.view(-1, size).std(-1).repeat_interleave(size)
        baselined = group_advantages(rewards, size, self.advantage_estimator, failed)
        for experience in experiences:
            rows = torch.tensor(experience.index)
            mask = experience.action_mask
            clip = args.reward.clip_range
            kl = (self.kl_ctl.value, experience.kl)
            reward = compute_reward(baselined[rows], *kl, action_mask=mask, reward_clip_range=clip)
            experience.returns = self.get_cumulative_returns(reward, mask, 1.0)
            experience.advantages = experience.returns.clone()
            experience.info |= {"group_reward_std": spread[rows], "return": reward.sum(-1)}
            experience.kl = None


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
