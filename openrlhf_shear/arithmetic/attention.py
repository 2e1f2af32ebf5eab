"""Attention of a small policy over some hundred tokens on a CPU: what transformers computes, in less time.

Legend: B sequences, H heads, S positions, D size of a head.
"""

import contextlib
from collections.abc import Iterator

import torch
from transformers import AttentionInterface

BLOCKED = "blocked_causal"  # as transformers calls it once this file is imported
_BLOCK = 128  # positions


def blocked_causal(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Causal attention over whole sequences, padded on the right or not at all: queries in blocks, each with the keys
    up to its end. torch's fused kernel takes twice the seconds for its gradients.

    Args:
        query, key, value: (B, H, S, D).

    Returns:
        (B, S, H, D), and no weights.
    """
    length, parts = query.shape[2], []
    future = torch.ones(_BLOCK, _BLOCK, dtype=torch.bool, device=query.device).triu(1)
    for begin in range(0, length, _BLOCK):
        end = min(begin + _BLOCK, length)
        scores = query[:, :, begin:end] @ key[:, :, :end].transpose(2, 3) * scaling
        scores[..., begin:].masked_fill_(future[: end - begin, : end - begin], -torch.inf)
        parts.append(scores.softmax(-1) @ value[:, :, :end])
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None


AttentionInterface.register(BLOCKED, blocked_causal)


@contextlib.contextmanager
def attending_in_blocks(model) -> Iterator[None]:
    """While entered, the model of transformers attends so, over whole sequences alone; eagerly afterwards."""
    model.set_attn_implementation(BLOCKED)
    try:
        yield
    finally:
        model.set_attn_implementation("eager")
