"""Spread of the token costs between two sides: the unit in which epsilon says how much transport can tell apart.

Entropic transport tells two costs apart if they differ by some epsilon. A few hidden dimensions that are huge in every
token ("massive") raise the mean norm and not the costs' differences. An epsilon relative to the norm then exceeds them.
"""

from collections.abc import Sequence

import torch

from openrlhf_shear.transport.geometry import token_costs

SAMPLED_TOKENS = 256  # of a side, whose costs are measured: 0.4% of the costs between 2 x 4000 tokens
_WORKSPACE_BYTES = 2**26
_ROUNDING = 1e-5  # of the mean cost: `token_costs` has errors of this size where tokens nearly cancel


def cost_spread(correct: Sequence[torch.Tensor], incorrect: Sequence[torch.Tensor], scale: float) -> float:
    """Return the standard deviation of the costs `||x_i - y_j||_2 / scale` between tokens x and y of opposing sides.

    All pairs count (divisor: their number) if each side has at most `SAMPLED_TOKENS` tokens. Of a longer side it takes
    so many tokens, evenly spread over its rollouts in order: token `floor(k T / SAMPLED_TOKENS)` of T. So tiles, parts
    and backend of the search do not change it, and it needs no pass over all costs. It is 0.0 if all costs are equal up
    to rounding.

    Args:
        correct, incorrect: tokens (T_i, d) of a side's rollouts, any float dtype, one device; a token at least.

    Example: from the origin, tokens at distances 3 and 5, in units of 2.

    >>> cost_spread([torch.zeros(1, 2)], [torch.tensor([[0.0, 3.0], [3.0, 4.0]])], scale=2.0)
    0.5
    """
    x, y = _sampled(correct), _sampled(incorrect)
    costs = token_costs(x, y, scale, _WORKSPACE_BYTES).double()
    spread, mean = torch.stack([costs.std(correction=0), costs.mean()]).tolist()  # a single wait for the device
    return spread if spread > _ROUNDING * mean else 0.0


def _sampled(rollouts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return at most `SAMPLED_TOKENS` tokens of a side, (T, d), without a copy of the others."""
    total, offset, parts = sum(map(len, rollouts)), 0, []
    count = min(total, SAMPLED_TOKENS)
    chosen = torch.arange(count) * total // count
    for tokens in rollouts:
        here = chosen[(chosen >= offset) & (chosen < offset + len(tokens))] - offset
        parts.append(tokens[here.to(tokens.device)])
        offset += len(tokens)
    return torch.cat(parts)
