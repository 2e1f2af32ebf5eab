"""From the distances of spans to the weights of tokens: pooling and normalisation.

Legend: `T` response tokens, `K` spans.
"""

from __future__ import annotations

import torch

# These have no units, so `normalize = "none"` has nothing to undo.
_UNITLESS = ("cosine", "mmd")


def pool_spans(distances: torch.Tensor, starts: torch.Tensor, length: int, window: int, pool: str) -> torch.Tensor:
    """Each token's weight: the largest, or the mean, of the distances of the spans that cover it.

    Example: spans [0, 3) and [2, 5) with distances 1 and 2, pool "max" -> 1, 1, 2, 2, 2.

    Args:
        distances, starts: (K,) float32 and int64, one device, K at least 1.
        length: T; every token is covered (see `ot.span_starts`).
        window: tokens in a span, fewer at the end.
        pool: one of `config.rules.POOLS`.

    Returns:
        (T,) float32.
    """
    token = torch.arange(length, device=starts.device)
    covers = (token >= starts[:, None]) & (token < starts[:, None] + window)
    if pool == "max":
        return torch.where(covers, distances[:, None], -torch.inf).amax(0)
    assert pool == "mean", pool
    return (covers * distances[:, None]).sum(0) / covers.sum(0)


def normalize_weights(
    weights: list[torch.Tensor], normalize: str, mean_norm: float, distance: str
) -> list[torch.Tensor]:
    """The weights of the measured rollouts, in the units asked for.

    - `cross_rollout`: as they come, in units of nbar.
    - `per_rollout`: each rollout's weights times (mean weight of the group's tokens / mean weight of the rollout's
      tokens), so that all rollouts weigh the same on average. Weights that are all 0 have no shape to keep, and become
      that mean.
    - `none`: in the units of the hidden states, that is times nbar; cosine and mmd have no units and stay.

    Args:
        weights: one (T_i,) a rollout, none of them empty, in units of nbar.
    """
    if normalize == "cross_rollout":
        return weights
    if normalize == "per_rollout":
        group_mean = torch.cat(weights).mean()
        means = [weight.mean() for weight in weights]
        return [
            torch.where(mean > 0, weight * (group_mean / mean), group_mean)
            for weight, mean in zip(weights, means, strict=True)
        ]
    assert normalize == "none", normalize
    return weights if distance in _UNITLESS else [weight * mean_norm for weight in weights]
