"""What a rule can show of a group beyond its weights: where the spans are, what each is nearest to, and how far apart
the spans of two rollouts are.

Legend: `K_i` spans of rollout i, `S_i` of them shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class SpanEvidence:
    """One rollout's; all tensors on the CPU.

    Attributes:
        span_starts: (K,) int64 tokens.
        span_distances: (K,) float32 in units of nbar; infinite where nothing opposes.
        nearest_sample: (K,) int64: the rollout of the nearest opposing span, by its index in the group; -1 where
            nothing opposes.
        nearest_span: (K,) int64: which of that rollout's spans; -1 likewise.
        heatmap_spans: (S,) int64: the spans that heatmaps show, ascending.
        heatmaps: by the other rollout's index j, greater than this one's: (S, S_j) float32 distances between shown
            spans in units of nbar, whatever the outcomes. None for rollouts that were not measured.
    """

    span_starts: torch.Tensor
    span_distances: torch.Tensor
    nearest_sample: torch.Tensor
    nearest_span: torch.Tensor
    heatmap_spans: torch.Tensor
    heatmaps: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupEvidence:
    """Of a group: one `SpanEvidence` a rollout, in the order of the group."""

    rollouts: tuple[SpanEvidence, ...]
