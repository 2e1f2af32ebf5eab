"""Spread of the token costs between two sides: the unit in which epsilon says how much transport can tell apart.

Entropic transport tells two costs apart if they differ by some epsilon. A few hidden dimensions that are huge in every
token ("massive") raise the mean norm and not the costs' differences. An epsilon relative to the norm then exceeds them.
"""

from collections.abc import Sequence

import torch

SAMPLED_TOKENS = 256  # of a side, whose costs are measured: 0.4% of the costs between 2 x 4000 tokens
_ROUNDING = 1e-5  # of the mean cost
_CANCELLED = 1e-6  # in units of the scale: costs of equal tokens have errors of 1e-8 of their norms


def cost_spread(correct: torch.Tensor, incorrect: torch.Tensor, scale: float) -> float:
    """Return the standard deviation of the costs `||x_i - y_j||_2 / scale` between tokens x and y of opposing sides.

    All pairs count (divisor: their number) if each side has at most `SAMPLED_TOKENS` tokens. Of a longer side it takes
    so many tokens, evenly spread: token `floor(k T / SAMPLED_TOKENS)` of T. So tiles and backend of the search
    do not change it, and it needs no pass over all costs. It is 0.0 if all costs are equal up to rounding.

    Args:
        correct, incorrect: tokens (T, d) of a side's rollouts, one after the other, any float dtype, one device; T > 0.
        scale: of the order of the tokens' norms.

    Example: from the origin, tokens at distances 3 and 5, in units of 2.

    >>> cost_spread(torch.zeros(1, 2), torch.tensor([[0.0, 3.0], [3.0, 4.0]]), scale=2.0)
    0.5
    """
    return cost_spreads([(correct, incorrect, scale)])[0]


def cost_spreads(groups: Sequence[tuple[torch.Tensor, torch.Tensor, float]]) -> list[float]:
    """Return the `cost_spread` of each group (correct, incorrect, scale), after a single wait for the device."""
    measured = []
    for correct, incorrect, scale in groups:
        x, y = (_sampled(side).double() for side in (correct, incorrect))
        with torch.autocast(x.device.type, enabled=False):
            costs = torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist") / scale
        measured += [costs.std(correction=0), costs.mean()]
    numbers = torch.stack(measured).view(-1, 2).tolist() if measured else []
    return [spread if spread > max(_ROUNDING * mean, _CANCELLED) else 0.0 for spread, mean in numbers]


def _sampled(tokens: torch.Tensor) -> torch.Tensor:
    """Return at most `SAMPLED_TOKENS` tokens, evenly spread."""
    count = min(len(tokens), SAMPLED_TOKENS)
    return tokens[torch.arange(count, device=tokens.device) * len(tokens) // count]
