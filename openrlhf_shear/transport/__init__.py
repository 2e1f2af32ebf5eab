"""Optimal transport between spans of hidden states, in plain PyTorch.

geometry (spans, token costs) -> tiles -> sinkhorn (scaling) -> distances (of span pairs) -> search (race, of pairs).
"""

from openrlhf_shear.transport.distances import make_distance, make_together
from openrlhf_shear.transport.geometry import Spans, span_starts
from openrlhf_shear.transport.search import SpanSearch, search_groups, search_spans
from openrlhf_shear.transport.sinkhorn import SinkhornResult, sinkhorn_distance, solve_sinkhorn
from openrlhf_shear.transport.sinkhorn_pairs import SinkhornPairs
from openrlhf_shear.transport.spread import cost_spread, cost_spreads
from openrlhf_shear.transport.tiles import search_bytes

__all__ = [
    "SinkhornPairs",
    "SinkhornResult",
    "SpanSearch",
    "Spans",
    "cost_spread",
    "cost_spreads",
    "make_distance",
    "make_together",
    "search_bytes",
    "search_groups",
    "search_spans",
    "sinkhorn_distance",
    "solve_sinkhorn",
    "span_starts",
]
