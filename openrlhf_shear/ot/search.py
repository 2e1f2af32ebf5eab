"""The span search: how far each span is from the spans of the opposing rollouts.

This is the one place where the spans of a group meet. Here every pair is solved and the aggregate taken afterwards; a
search that prunes, or runs a kernel, replaces `search_spans` and keeps its result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from openrlhf_shear.ot.distances import make_distance
from openrlhf_shear.ot.geometry import Spans


@dataclass(frozen=True)
class SpanSearch:
    """Distances of the spans of two opposing sides, and how many of the solves behind them did not converge.

    Attributes:
        correct: (K_c,) float32 on the device of the tokens, in units of nbar.
        incorrect: (K_w,) likewise.
        unconverged_fraction: in [0, 1].
    """

    correct: torch.Tensor
    incorrect: torch.Tensor
    unconverged_fraction: float


def search_spans(
    correct: Spans, incorrect: Spans, distance: str, aggregate: str, epsilon: float, max_bytes: int
) -> SpanSearch:
    """Each span's distance to the spans of the other side. All distances are symmetric, so a solve serves both.

    Args:
        correct, incorrect: at least one span each, with the same scale nbar.
        distance: one of `config.DISTANCES`.
        aggregate: one of `config.AGGREGATES`, over the opposing spans.
        epsilon: entropic regularisation in units of nbar; also softmin's temperature.
        max_bytes: bound on the extra memory (the matrix of span pairs comes on top, 5 bytes a pair).
    """
    values, converged = make_distance(distance, epsilon, max_bytes)(correct, incorrect)
    unconverged = int((~converged).sum())
    return SpanSearch(
        correct=_aggregate(values, aggregate, epsilon),
        incorrect=_aggregate(values.T, aggregate, epsilon),
        unconverged_fraction=unconverged / converged.numel(),
    )


def _aggregate(values: torch.Tensor, aggregate: str, temperature: float) -> torch.Tensor:
    """(K, L) distances to L opposing spans -> (K,). softmin is `-t log mean exp(-d / t)`."""
    if aggregate == "min":
        return values.amin(1)
    if aggregate == "mean":
        return values.mean(1)
    if aggregate == "softmin":
        log_mean = torch.logsumexp(-values / temperature, dim=1) - math.log(values.shape[1])
        return -temperature * log_mean
    raise ValueError(f"no aggregate is called {aggregate!r}; use min, mean or softmin")
