"""What a rule can show of a group beyond its weights. Legend: `K_i` spans of rollout i, `S_i` of them shown."""

from dataclasses import dataclass, field

import torch

CONTROLS = ("same", "permuted")


@dataclass(frozen=True)
class SpanEvidence:
    """One rollout's: its spans, what each is nearest to, and how far they are from others'. All tensors on the CPU.

    `heatmaps` are by the other rollout's index j, greater than this one's: (S, S_j) float32 distances between shown
    spans in units of nbar, whatever the outcomes. Rollouts that were not measured have none.
    """

    span_starts: torch.Tensor  # (K,) int64 tokens
    span_distances: torch.Tensor  # (K,) float32 in units of nbar; infinite where nothing opposes
    nearest_sample: torch.Tensor  # (K,) int64: whose span is nearest, by its index in the group; -1 if none
    nearest_span: torch.Tensor  # (K,) int64: which of that rollout's spans; -1 likewise
    heatmap_spans: torch.Tensor  # (S,) int64: the spans that heatmaps show, ascending
    heatmaps: dict[int, torch.Tensor] = field(default_factory=dict)
    # by name (`CONTROLS`), (K,) float32 as `span_distances`, but "same": to the other rollouts with the same outcome;
    # "permuted": to the opposing ones if the group's outcomes stood in a random order. Empty where not asked for
    controls: dict[str, torch.Tensor] = field(default_factory=dict)
    largest_norm: float | None = None  # of a token, in units of nbar; with the controls


@dataclass(frozen=True)
class GroupEvidence:
    """Of a group: one `SpanEvidence` a rollout, in the order of the group."""

    rollouts: tuple[SpanEvidence, ...]
