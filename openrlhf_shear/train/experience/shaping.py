"""Reward shaping between grader and advantage: length penalties, the clip, then rewards per token."""

from argparse import Namespace

import torch
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.length_penalty import apply_stop_properly_penalty
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.credit.baselines import overlong_penalty

logger = init_logger(__name__)
SHAPING = ("overlong_buffer_len", "stop_properly_penalty_coef", "clip_range")  # the flags --reward.* of `shape_rewards`


def shape_rewards(experiences: list[Experience], args: Namespace) -> None:
    """Replace the grader's rewards by shaped ones, (B,) float32, before any baseline is subtracted.

    The order is `--reward.overlong_*`, `--reward.stop_properly_penalty_coef`, both as upstream, then
    `--reward.clip_range`. Upstream clips after the baseline, so that a group's advantages no longer sum to 0.
    """
    reward, count = args.reward, sum(len(experience.rewards) for experience in experiences)
    for experience in experiences:
        experience.rewards = experience.rewards.to(torch.promote_types(experience.rewards.dtype, torch.float32))
    if reward.overlong_buffer_len is not None:
        penalties = [_overlong(experience, args) for experience in experiences]
        logger.info(f"overlong penalty: {sum(int((each < 0).sum()) for each in penalties)} of {count} rollouts")
        for experience, penalty in zip(experiences, penalties, strict=True):
            experience.rewards = experience.rewards + penalty
    if reward.stop_properly_penalty_coef is not None:
        truncated = apply_stop_properly_penalty(experiences, reward.stop_properly_penalty_coef)
        logger.info(f"stop properly penalty: {truncated} of {count} rollouts")
    if reward.clip_range is not None:
        clipped = [experience.rewards.clamp(*reward.clip_range) for experience in experiences]
        outside = sum(int((each != e.rewards).sum()) for each, e in zip(clipped, experiences, strict=True))
        if outside:
            logger.info(f"reward clip: {outside} of {count} rewards lie outside {tuple(reward.clip_range)}")
        for experience, rewards in zip(experiences, clipped, strict=True):
            experience.rewards = rewards
    for experience in experiences:
        experience.info["reward"] = experience.rewards.clone()


def _overlong(experience: Experience, args: Namespace) -> torch.Tensor:
    """Return the overlong penalty, (B,).

    The limit of a response is what its prompt and tool outputs leave of `--data.max_len`, at most
    `--rollout.max_new_tokens`.
    """
    lengths = experience.response_length
    limits = args.data.max_len - (experience.total_length - lengths)
    if args.rollout.max_new_tokens is not None:
        limits = limits.clamp(max=args.rollout.max_new_tokens)
    return overlong_penalty(lengths, limits, args.reward.overlong_buffer_len, args.reward.overlong_penalty_factor)


def token_rewards(rewards: torch.Tensor, kl_coef: float, kl: torch.Tensor, action_mask: torch.Tensor) -> torch.Tensor:
    """Return rewards per token, (B, A): -kl_coef * kl at response tokens, plus the reward at the last; 0 elsewhere.

    Args:
        rewards: (B,), after the baseline if there is one.
        kl, action_mask: (B, A).
    """
    totals = compute_reward(rewards, kl_coef, kl, action_mask=action_mask)
    return totals.masked_fill(~action_mask.bool(), 0.0)
