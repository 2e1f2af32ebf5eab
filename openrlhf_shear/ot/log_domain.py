"""Sinkhorn in the log domain, float64: slow and unbreakable, for the problems that leave the range of float32."""

from __future__ import annotations

import torch

from openrlhf_shear.ot.tiles import CostBlocks

_CHECK_EVERY = 10


def log_domain_potentials(
    blocks: CostBlocks, epsilon: float, tolerance: float, max_iterations: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Solve a batch until its largest marginal error is at most `tolerance`, or for `max_iterations`.

    Returns:
        Potentials (P, n) and (P, m) float32 in units of the cost (0 at padding), marginal errors (P,) float32, and
        iterations (P,) int64, after an exact column update.
    """
    a, b = (mass.double() for mass in blocks.masses())
    cost = blocks.cost.double() / epsilon
    log_a, log_b = a.log(), b.log()
    g = torch.zeros_like(b)
    for done in range(1, max_iterations + 1):
        f = -torch.logsumexp(log_b[:, None, :] + g[:, None, :] - cost, dim=2).masked_fill(~blocks.rows, 0)
        g = -torch.logsumexp(log_a[:, :, None] + f[:, :, None] - cost, dim=1).masked_fill(~blocks.columns, 0)
        if done % _CHECK_EVERY == 0 or done == max_iterations:
            rows = torch.logsumexp(log_b[:, None, :] + g[:, None, :] - cost, dim=2) + log_a + f
            error = (rows.exp() - a).abs().sum(1)
            if bool((error <= tolerance).all()):
                break
    iterations = torch.full_like(error, done, dtype=torch.int64)
    return (f * epsilon).float(), (g * epsilon).float(), error.float(), iterations
