"""Lower bounds that do without a solve, for many span pairs at once.

Legend: T_a/T_b tokens and K_a/K_b spans of the two sides of a tile, n/m tokens of the longest span.
"""

from collections.abc import Callable

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

    Returns (K_a, K_b) float32.
    """

    def lowest(f: torch.Tensor, block: torch.Tensor, others: Spans) -> torch.Tensor:
        return window_means((block - f[:, None]).amin(0), others)

    return torch.maximum(dual_bounds(tile, f, lowest), dual_bounds(tile, g, lowest, transposed=True).T)


def dual_bounds(
    tile: Tile, potentials: torch.Tensor | None, conjugate: Callable[..., torch.Tensor], transposed: bool = False
) -> torch.Tensor:
    """`<a, f> + conjugate(f, block, others)` of every span: (K_a, K_b) float32, from the columns (K_b, K_a).

    Args:
        potentials: (K, n), anything at padding; None for 0.
        conjugate: `<b, g>` (K_others,) float64 of the best g for f (n,), from the costs (n, T_others) of its span.
    """
    cost, spans, others = (tile.cost.T, tile.b, tile.a) if transposed else (tile.cost, tile.a, tile.b)
    bounds = []
    for k, block in enumerate(spans.blocks(cost)):
        f = cost.new_zeros(len(block)) if potentials is None else potentials[k, : len(block)]
        bounds.append(f.double().mean() + conjugate(f, block, others))
    return torch.stack(bounds).float()
