"""Evidence that a rule can show of a group beside its weights. Legend: `K_i` spans of rollout i, `S_i` shown spans."""

from dataclasses import dataclass, field

import torch

CONTROLS = ("same", "permuted")


@dataclass(frozen=True)
class SpanEvidence:
    """Spans of one rollout, their nearest opposing spans, and their distances. All tensors are on the CPU.

    `heatmaps` are by the index j of the other rollout, greater than this rollout's. They hold (S, S_j) float32
    distances between shown spans, in units of nbar, for equal and opposite outcomes alike. Rollouts that were not
    measured have none.
    """

    span_starts: torch.Tensor  # (K,) int64 tokens
    span_distances: torch.Tensor  # (K,) float32 in units of nbar; infinite if no rollout opposes
    nearest_sample: torch.Tensor  # (K,) int64: rollout of the nearest span, by its index in the group; -1 if none
    nearest_span: torch.Tensor  # (K,) int64: index of that span in its rollout; -1 likewise
    heatmap_spans: torch.Tensor  # (S,) int64: the spans that heatmaps show, ascending
    heatmaps: dict[int, torch.Tensor] = field(default_factory=dict)
    # Distances by name (`CONTROLS`), (K,) float32 like `span_distances`. "same": to the other rollouts of the same
    # outcome. "permuted": to the opposing rollouts after the group's outcomes were shuffled. Empty without controls.
    controls: dict[str, torch.Tensor] = field(default_factory=dict)
    largest_norm: float | None = None  # of a token, in units of nbar; None without controls


@dataclass(frozen=True)
class GroupEvidence:
    """Evidence of a group: one `SpanEvidence` per rollout, in the order of the group."""

    rollouts: tuple[SpanEvidence, ...]
