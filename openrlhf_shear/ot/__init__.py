"""Optimal transport between spans of hidden states, in plain PyTorch.

geometry -> blocks -> sinkhorn (scaling, log_domain) -> distances -> search. (POT, whose module is called `ot` too, is
used for the exact Wasserstein distance alone.)
"""

from openrlhf_shear.ot.geometry import Spans, span_starts
from openrlhf_shear.ot.search import SpanSearch, search_spans
from openrlhf_shear.ot.sinkhorn import SinkhornResult, sinkhorn_distance, solve_sinkhorn

__all__ = [
    "SinkhornResult",
    "SpanSearch",
    "Spans",
    "search_spans",
    "sinkhorn_distance",
    "solve_sinkhorn",
    "span_starts",
]
