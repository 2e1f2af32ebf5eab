"""Spans, and costs between tokens.

Legend: T response tokens, K spans, n/m tokens of a span, d hidden size.
Next: `transport.search`, which finds the nearest span of the other side.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch

from openrlhf_shear.config.shear import SpanCut
from openrlhf_shear.transport.copies import to_device

# Cancellation spoils a squared distance below this fraction of the two squared norms. These few are recomputed from the
# difference of the tokens. At the threshold the error of the distance is about 1e-5 of the norm (1e-3 eps).
_CANCELLATION = {torch.float32: 1e-4, torch.float64: 1e-10}
_CPU_BLOCK, _CUDA_BLOCK = 512, 4096  # tokens of a side in one product
_DOUBLE = 8  # bytes
_NORM_BYTES = 2**26
_ONEDNN_WORK = 2**26  # multiply-adds of a product; for less, oneDNN's compiling for new shapes takes what it saves


def span_starts(length: int, cut: SpanCut) -> torch.Tensor:
    """Return the starts `0, s, 2s, ...` of a response's spans, (K,) int64.

    Span k covers the tokens `[start_k, min(start_k + window, length))`; an empty response has no span.

    `cut.tail` chooses the last start. With "one", the last span is the first that reaches the end:
    only this span can be shorter than `window`. With "every", the last start is the last multiple of the stride below
    `length`, so several spans at the end can be short. The paper gives no stopping rule; both readings fit it.

    `cut.max_spans` limits the number of spans (0: no limit). Above it, the stride becomes the smallest that gives at
    most so many. The stride never exceeds the window, so every token is in a span.

    >>> span_starts(10, SpanCut(4, 3)).tolist(), span_starts(20, SpanCut(8, 1, max_spans=4)).tolist()
    ([0, 3, 6], [0, 4, 8, 12])

    >>> span_starts(10, SpanCut(4, 3, tail="every")).tolist()
    [0, 3, 6, 9]
    """
    window, stride, most = cut.window, cut.stride, cut.max_spans
    if length == 0:
        return torch.empty(0, dtype=torch.int64)
    if cut.tail == "every":
        least = -(-length // most) if most else 1
        return torch.arange(0, length, max(stride, min(window, least)))
    assert cut.tail == "one", cut.tail
    beyond = max(0, length - window)
    if most and beyond > stride * (most - 1):
        stride = max(stride, min(window, -(-beyond // max(1, most - 1))))
    beyond_first = -(-beyond // stride)
    return torch.arange(beyond_first + 1) * stride


@dataclass(frozen=True)
class Spans:
    """Spans of one side of the group (all correct or all incorrect rollouts), over their concatenated tokens."""

    tokens: torch.Tensor  # (T, d) hidden states of all rollouts of the side, any float dtype, any device
    starts: torch.Tensor  # (K,) int64 on the CPU, ascending: the first row of each span in `tokens`
    sizes: torch.Tensor  # (K,) int64 on the CPU, at least 1
    scale: float = 1.0  # distances are between `tokens / scale` (nbar of the paper)

    @classmethod
    def pack(cls, rollouts: list[torch.Tensor], cut: SpanCut, scale: float) -> Self:
        """Cut `rollouts` (at least one, each (T_i, d)) into spans, rollout after rollout; see `span_starts`."""
        starts, sizes, offset = [], [], 0
        for tokens in rollouts:
            first = span_starts(len(tokens), cut)
            starts.append(first + offset)
            sizes.append((len(tokens) - first).clamp(max=cut.window))
            offset += len(tokens)
        return cls(torch.cat(rollouts), torch.cat(starts), torch.cat(sizes), scale)

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def _places(self) -> torch.Tensor:
        """Starts and sizes on the device of the tokens, (2, K)."""
        return to_device(torch.stack([self.starts, self.sizes]), self.tokens.device)

    def blocks(self, rows: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the part (n, ...) of `rows` (T, ...) that belongs to each span; row t belongs to token t."""
        return (rows[i : i + n] for i, n in zip(self.starts.tolist(), self.sizes.tolist(), strict=True))

    def means(self, values: torch.Tensor) -> torch.Tensor:
        """Return the means of `values` (..., T) over the tokens of each span: (..., K) float64."""
        # Differences of running sums would be faster, but CUDA's cumsum of floats refuses to be deterministic.
        rows, inside = self.positions(torch.arange(len(self), device=values.device))
        return values.double()[..., rows].where(inside, 0.0).sum(-1) / self._places[1]

    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Cut the tokens where a span begins or ends. Return the ends (P + 1,) of parts, and each span's [first, last).

        >>> spans = Spans(torch.zeros(5, 1), torch.tensor([0, 2]), torch.tensor([4, 3]))
        >>> tuple(each.tolist() for each in spans.parts())
        ([0, 2, 4, 5], [0, 1], [2, 3])
        """
        ends = torch.cat([self.starts, self.starts + self.sizes]).unique()
        return ends, *(torch.searchsorted(ends, edge) for edge in (self.starts, self.starts + self.sizes))

    def positions(self, which: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows (P, n) of the spans `which` (P,), padded with the last row; and a mask, False at padding."""
        starts, sizes = self._places[:, which, None]
        offsets = torch.arange(int(self.sizes.max()), device=which.device)
        return starts + torch.minimum(offsets, sizes - 1), offsets < sizes

    def part(self, which: slice) -> Self:
        """Return the spans `which` (neighbours, at least one), with no tokens but theirs."""
        starts, sizes = self.starts[which], self.sizes[which]
        begin, end = int(starts[0]), int((starts + sizes).max())
        return Spans(self.tokens[begin:end], starts - begin, sizes, self.scale)


def token_costs(x: torch.Tensor, y: torch.Tensor, scale: float, workspace_bytes: int) -> torch.Tensor:
    """Return the costs `||x_i - y_j||_2 / scale`, (n, m) float32, of tokens (n, d) and (m, d) of any float dtype.

    The cost of identical tokens is exactly 0. The products are made by GEMM, block by block. Process settings that
    allow TF32 or bfloat16 in products do not affect the result, and stay as they are. The error is about 5e-6 of the
    tokens' norms, and 1e-5 where tokens nearly cancel.

    Args:
        workspace_bytes: approximate extra memory beside the result (below 2**20, only a few rows at a time fit).
    """
    n, m, d = len(x), len(y), x.shape[1]
    most = _CPU_BLOCK if x.device.type == "cpu" else _CUDA_BLOCK
    step = max(1, min(most, workspace_bytes // (4 * _DOUBLE * d), int((workspace_bytes / (6 * _DOUBLE)) ** 0.5)))
    cost = torch.empty(n, m, dtype=torch.float32, device=x.device)
    # Prepare the columns once if all of them fit into memory, else again for each block of rows.
    columns = [Tokens(part) for part in y.split(step)] if 4 * m * _DOUBLE * d <= workspace_bytes else None
    with torch.autocast(x.device.type, enabled=False):
        for tokens, row_costs in zip(x.split(step), cost.split(step), strict=True):
            rows = Tokens(tokens)
            sides = columns or (Tokens(part) for part in y.split(step))
            for side, block in zip(sides, row_costs.split(step, dim=1), strict=True):
                block.copy_(_squared_costs(rows, side, workspace_bytes).sqrt_().div_(scale))
    return cost


def token_norms(tokens: torch.Tensor) -> torch.Tensor:
    """Return the norms of tokens (n, d), (n,) float64, of some tokens at a time: torch makes these float64 first."""
    parts = tokens.split(max(1, _NORM_BYTES // (_DOUBLE * tokens.shape[1])))
    return torch.cat([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts])


class Tokens:
    """Tokens (n, d) as given, and as a factor of matrix products."""

    def __init__(self, tokens: torch.Tensor):
        self.tokens, self.factor = tokens, tokens.to(_product_dtype(tokens))
        self.cancellation = _CANCELLATION[_result_dtype(self.factor.dtype)]

    @cached_property
    def norms(self) -> torch.Tensor:
        """Norms of the tokens, (n,) float64."""
        return token_norms(self.factor)

    @cached_property
    def squared(self) -> torch.Tensor:
        """Squared norms (n,), in the dtype of the products."""
        return self.norms.square().to(_result_dtype(self.factor.dtype))

    @cached_property
    def largest(self) -> float:
        """The largest squared norm; on CUDA it waits for the device."""
        return float(self.squared.max())

    def __len__(self) -> int:
        return len(self.tokens)


def _squared_costs(x: Tokens, y: Tokens, workspace_bytes: int) -> torch.Tensor:
    squared = products(x.factor, y.factor).mul_(-2).add_(x.squared[:, None]).add_(y.squared)
    if squared.min() > x.cancellation * (x.largest + y.largest):  # true for most blocks
        return squared
    near = torch.nonzero(squared <= (x.squared[:, None] + y.squared).mul_(x.cancellation))
    for pairs in near.split(max(1, workspace_bytes // (6 * _DOUBLE * x.tokens.shape[1]))):
        rows, columns = pairs.unbind(1)
        difference = x.tokens[rows].double() - y.tokens[columns].double()
        squared[rows, columns] = difference.square_().sum(1).to(squared.dtype)
    return squared


def _product_dtype(x: torch.Tensor) -> torch.dtype:
    """Return the dtype in which `x` must enter a matrix product, for a result as precise as float32.

    Products of bf16 or fp16 numbers are exact in float32, in which CUDA sums them up. The precision of a float32
    product depends on the process's settings.
    """
    if x.is_cuda and x.dtype in (torch.bfloat16, torch.float16):
        return x.dtype
    exact = not x.is_cuda and torch.backends.mkldnn.matmul.fp32_precision in ("none", "ieee")
    return torch.float32 if exact and x.dtype != torch.float64 else torch.float64


def _result_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the products (n, m) of factors of `Tokens`; autocast must be off, or the factors in half precision.

    On CPUs with AVX-512 oneDNN takes half of the time of torch.mm, which calls MKL.
    """
    if x.dtype != _result_dtype(x.dtype):
        return torch.mm(x, y.T, out_dtype=torch.float32)
    large = len(x) * y.numel() >= _ONEDNN_WORK and torch.backends.mkldnn.is_available()
    if large and x.device.type == "cpu" and x.dtype == torch.float32:
        return torch.nn.functional.linear(x.to_mkldnn(), y).to_dense()
    return torch.mm(x, y.T)
