"""Lower bounds that do without a solve, for many span pairs at once.

Legend: T_a/T_b tokens and K_a/K_b spans of the two sides of a tile, n/m tokens of the longest span.
"""

from __future__ import annotations

import torch

from openrlhf_shear.ot.geometry import Spans
from openrlhf_shear.ot.tiles import Tile


def window_means(values: torch.Tensor, spans: Spans) -> torch.Tensor:
    """The mean of `values` (..., T) over the tokens of each span: (..., K) float64."""
    running = torch.nn.functional.pad(values.double().cumsum(-1), (1, 0))
    starts, sizes = spans.starts.to(values.device), spans.sizes.to(values.device)
    return (running[..., starts + sizes] - running[..., starts]) / sizes


def transport_bounds(tile: Tile, f: torch.Tensor | None = None, g: torch.Tensor | None = None) -> torch.Tensor:
    """Lower bounds of `W_1` by Kantorovich duality, `<a, f> + <b, g>` with `g_j = min_i C_ij - f_i`, of both sides.

    They hold for the cost of any coupling, so for the entropic plan's as well. f = 0 gives RWMD (Kusner et al. 2015).
    (Sinkhorn's own dual value bounds W_eps, which lies above W_1; it bounds neither.)

    Args:
        f: (K_a, n) potentials of the row spans, in units of nbar, anything at padding; None for 0.
        g: (K_b, m) of the column spans, likewise.

    Returns:
        (K_a, K_b) float32.
    """
    from_rows = _transport_bounds(tile.cost, tile.a, tile.b, f)
    return torch.maximum(from_rows, _transport_bounds(tile.cost.T, tile.b, tile.a, g).T)


def _transport_bounds(cost: torch.Tensor, spans: Spans, others: Spans, potentials: torch.Tensor | None):
    bounds = []
    for k, (start, size) in enumerate(zip(spans.starts.tolist(), spans.sizes.tolist(), strict=True)):
        f = cost.new_zeros(size) if potentials is None else potentials[k, :size]
        conjugate = (cost[start : start + size] - f[:, None]).amin(0)
        bounds.append(f.double().mean() + window_means(conjugate, others))
    return torch.stack(bounds).float()
