"""The loss of the lab's trainer: OpenRLHF's `PolicyLoss("ppo")`, token level, without corrections.

That class is not used itself, since importing it takes OpenRLHF and DeepSpeed; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MAX_LOG_RATIO = 20.0  # beyond it exp overflows; OpenRLHF's value


@dataclass(frozen=True)
class LossTerms:
    """
    Attributes:
        loss: () to be minimised.
        clip_ratio: fraction of tokens whose clipped term is the smaller one.
        kl: mean of -(log ratio), an estimate of KL(old || new), nats.
    """

    loss: torch.Tensor
    clip_ratio: float
    kl: float


def policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip: tuple[float, float],
) -> LossTerms:
    """PPO-clip, -min(r A, clip(r, 1 - low, 1 + high) A), averaged over all response tokens of the mini-batch.

    Args:
        log_probs, old_log_probs, advantages: (B, A) float32.
        mask: (B, A) bool, the response tokens.
        clip: (low, high), OpenRLHF's `--actor.eps_clip_low_high`.
    """
    log_ratio = log_probs - old_log_probs
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    free = ratio * advantages
    clipped = ratio.clamp(1 - clip[0], 1 + clip[1]) * advantages
    loss = -torch.min(free, clipped)[mask].mean()
    with torch.no_grad():
        return LossTerms(loss, (clipped < free)[mask].float().mean().item(), -log_ratio[mask].mean().item())
