"""Spans of a rollout, and the Euclidean costs between tokens.

Legend: `T` response tokens, `K` spans, `n`/`m` tokens of a span, `d` hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Squared distances are computed in float64 (relative error about 1e-15). Below this fraction of the two squared norms
# cancellation starts to show (1e-5 of the squared distance), so those few are recomputed from the difference.
_CANCELLATION = 1e-10
_DOUBLE = 8


def span_starts(length: int, window: int, stride: int) -> torch.Tensor:
    """Starts `0, s, 2s, ...` of the spans of a response, up to the first span that reaches its end.

    Span k covers the tokens `[start_k, min(start_k + window, length))`; every token is covered, only the last span can
    be shorter than `window`, and an empty response has no span.

    >>> span_starts(10, window=4, stride=3).tolist()
    [0, 3, 6]

    Returns:
        (K,) int64 on the CPU.
    """
    if length == 0:
        return torch.empty(0, dtype=torch.int64)
    beyond_first = max(0, -(-(length - window) // stride))
    return torch.arange(beyond_first + 1) * stride


@dataclass(frozen=True)
class Spans:
    """The spans of one side of the group (all correct or all incorrect rollouts), over their concatenated tokens.

    Attributes:
        tokens: (T, d) hidden states of all the rollouts of the side, any float dtype, any device.
        starts: (K,) int64 on the CPU, ascending: the first row of each span in `tokens`.
        sizes: (K,) int64 on the CPU, at least 1.
        scale: distances are those of `tokens / scale` (nbar of the paper).
    """

    tokens: torch.Tensor
    starts: torch.Tensor
    sizes: torch.Tensor
    scale: float = 1.0

    @classmethod
    def pack(cls, rollouts: list[torch.Tensor], window: int, stride: int, scale: float) -> Spans:
        """The spans of `rollouts` (each (T_i, d), at least one of them), rollout after rollout."""
        starts, sizes, offset = [], [], 0
        for tokens in rollouts:
            first = span_starts(len(tokens), window, stride)
            starts.append(first + offset)
            sizes.append((len(tokens) - first).clamp(max=window))
            offset += len(tokens)
        return cls(torch.cat(rollouts), torch.cat(starts), torch.cat(sizes), scale)

    def __len__(self) -> int:
        return len(self.starts)


def token_costs(x: torch.Tensor, y: torch.Tensor, scale: float, workspace_bytes: int) -> torch.Tensor:
    """`||x_i - y_j||_2 / scale` for all pairs of tokens; exactly 0 for identical tokens.

    The inner products are float64 GEMMs over slices of the hidden size: no cancellation worth the name, no dependence
    on the process's TF32 settings, and bf16 input is never upcast whole. Beside `workspace_bytes` the call needs
    about 24 bytes per entry of the result.

    Args:
        x, y: (n, d) and (m, d), any float dtype, one device.
        scale: positive.
        workspace_bytes: how much of x and y is upcast at a time.

    Returns:
        (n, m) float32.
    """
    n, m, d = len(x), len(y), x.shape[1]
    squared = x.new_zeros(n, m, dtype=torch.float64)
    x_squared, y_squared = squared.new_zeros(n), squared.new_zeros(m)
    width = max(1, workspace_bytes // (2 * _DOUBLE * (n + m)))
    for first in range(0, d, width):
        x_part, y_part = x[:, first : first + width].double(), y[:, first : first + width].double()
        squared.addmm_(x_part, y_part.T, alpha=-2)
        x_squared += x_part.square().sum(1)
        y_squared += y_part.square().sum(1)
    norms = x_squared[:, None] + y_squared
    squared += norms
    near = torch.nonzero(squared <= norms.mul_(_CANCELLATION))
    del norms
    for pairs in near.split(max(1, workspace_bytes // (3 * _DOUBLE * d))):
        rows, columns = pairs.unbind(1)
        squared[rows, columns] = (x[rows].double() - y[columns].double()).square().sum(1)
    return squared.sqrt_().div_(scale).float()
