"""From a rule's evidence to the columns of `Rollout`."""

from __future__ import annotations

from collections.abc import Sequence

from openrlhf_shear.credit.evidence import SpanEvidence
from openrlhf_shear.rollouts.record import Heatmap

SPAN_FIELDS = ("span_starts", "span_distances", "nearest_sample", "nearest_span", "heatmap_spans", "heatmaps")


def span_fields(evidence: SpanEvidence, samples: Sequence[int]) -> dict:
    """The span columns of a rollout.

    Args:
        samples: `sample` of each rollout of the group, in the order that the evidence has them.
    """
    return {
        "span_starts": evidence.span_starts.tolist(),
        "span_distances": evidence.span_distances.tolist(),
        "nearest_sample": [samples[i] if i >= 0 else -1 for i in evidence.nearest_sample.tolist()],
        "nearest_span": evidence.nearest_span.tolist(),
        "heatmap_spans": evidence.heatmap_spans.tolist(),
        "heatmaps": [Heatmap(samples[j], values.flatten().tolist()) for j, values in sorted(evidence.heatmaps.items())],
    }
