"""Reward shaping between grader and advantage: length penalties, the clip, then rewards per token."""

from argparse import Namespace

import torch
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.length_penalty import apply_stop_properly_penalty

from openrlhf_shear.credit.baselines import overlong_penalty

SHAPING = ("overlong_buffer_len", "stop_properly_penalty_coef", "clip_range")  # the flags --reward.* of `shape_rewards`


def shape_rewards(experiences: list[Experience], args: Namespace) -> None:
    """Replace the grader's rewards by shaped ones, (B,) float32, before any baseline is subtracted.

    The order is `--reward.overlong_*`, `--reward.stop_properly_penalty_coef`, both as upstream, then
    `--reward.clip_range`. Upstream clips after the baseline, so that a group's advantages no longer sum to 0.
    """
    reward = args.reward
    for experience in experiences:
        rewards = experience.rewards.to(torch.promote_types(experience.rewards.dtype, torch.float32))
        experience.rewards = rewards if reward.overlong_buffer_len is None else rewards + _overlong(experience, args)
    if reward.stop_properly_penalty_coef is not None:
        apply_stop_properly_penalty(experiences, reward.stop_properly_penalty_coef)
    for experience in experiences:
        if reward.clip_range is not None:
            experience.rewards = experience.rewards.clamp(*reward.clip_range)
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
