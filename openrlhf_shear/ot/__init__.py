"""Optimal transport between spans of hidden states, in plain PyTorch.

geometry (spans, token costs) -> tiles -> sinkhorn (scaling) -> distances (of span pairs) -> search (a race of pairs).
"""

from openrlhf_shear.ot.distances import make_distance
from openrlhf_shear.ot.geometry import Spans, span_starts
from openrlhf_shear.ot.search import SpanSearch, joined, search_spans
from openrlhf_shear.ot.sinkhorn import SinkhornResult, sinkhorn_distance, solve_sinkhorn
from openrlhf_shear.ot.sinkhorn_pairs import SinkhornPairs
from openrlhf_shear.ot.tiles import search_bytes

__all__ = [
    "SinkhornPairs",
    "SinkhornResult",
    "SpanSearch",
    "Spans",
    "joined",
    "make_distance",
    "search_bytes",
    "search_spans",
    "sinkhorn_distance",
    "solve_sinkhorn",
    "span_starts",
]
