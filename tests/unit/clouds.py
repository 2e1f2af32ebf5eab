"""Rollouts of hidden states to measure: at random, in clusters, with a common start, in two far islands."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

SAMPLE = Path(__file__).parents[1] / "data" / "smollm2_states.safetensors"
KINDS = ("random", "clustered", "prefix")


def clouds(kind: str, lengths: Sequence[int], d: int = 24, seed: int = 0) -> list[torch.Tensor]:
    """(T_i, d) each, with a mean norm of about 1. "clustered": around three points; "prefix": all start alike."""
    generator = torch.Generator().manual_seed(seed)
    found = [torch.randn(length, d, generator=generator) for length in lengths]
    if kind == "clustered":
        centres = torch.randn(3, d, generator=generator)
        found = [0.2 * x + centres[torch.randint(3, (len(x),), generator=generator)] for x in found]
    if kind == "prefix":
        for x in found[1:]:
            shared = min(len(x), len(found[0])) // 2
            x[:shared] = found[0][:shared]
    return [x / math.sqrt(d) for x in found]


def islands(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, 1) each: 2/3 of x but 1/3 of y lie near 0, the rest near 1. At C / eps = 500, entries between the
    islands underflow in a kernel that is made at once."""
    x, y = torch.zeros(tokens, 1), torch.zeros(tokens, 1)
    x[2 * tokens // 3 :], y[tokens // 3 :] = 1.0, 1.0
    return x + 0.01 * torch.arange(tokens)[:, None], y


def real_states() -> list[torch.Tensor]:
    """(T_i, 576) bfloat16 of SmolLM2-135M-Instruct, of rollouts of one prompt (benchmarks/hidden_states.py)."""
    states = load_file(SAMPLE)
    return [states[f"rollout_{i}"] for i in range(len(states))]
