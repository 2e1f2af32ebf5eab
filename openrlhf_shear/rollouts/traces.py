"""How well one rollout's token weights find its first error; on plain sequences, for the weights of any credit rule.

Weights rise along a rollout whatever happens in it, so an AUC of tokens after the error against those before is large
for any split. So each measure has its control here; `localisation` takes both over many rollouts.

Legend: T tokens of a rollout, e its first error; tokens e..T-1 are after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Trace:
    """What the measures need of a rollout of a mixed group.

    Attributes:
        weights: (T,) finite.
        first_error: index of the first wrong token, possibly T or more if that token was never written; None if there
            is none.
    """

    group: str
    correct: bool
    weights: Sequence[float]
    first_error: int | None


def split_auc(weights: Sequence[float], split: int) -> float:
    """AUC of weights[split:] against weights[:split], ties half; NaN if one of them is empty.

    >>> split_auc([0.1, 0.4, 0.4, 0.9], 2)
    0.875
    """
    weights = np.asarray(weights, dtype=float)
    if not 0 < split < len(weights):
        return np.nan
    after, before = weights[split:], weights[:split]
    return float(stats.mannwhitneyu(after, before, method="asymptotic").statistic / (len(after) * len(before)))


def random_split_auc(weights: Sequence[float]) -> float:
    """The expected `split_auc` of a uniformly random split in 1..T-1, exactly; NaN for fewer than two tokens.

    >>> random_split_auc([1, 2, 3]), random_split_auc([1, 1, 1]), random_split_auc([1, 3, 2])
    (1.0, 0.5, 0.75)
    """
    weights = np.asarray(weights, dtype=float)
    total = len(weights)
    if total < 2:
        return np.nan
    won, aucs = 0.0, []
    for split in range(1, total):  # token split - 1 moves from after to before
        moved = weights[split - 1]
        won += _over(weights[split:], moved) - (split - 1 - _over(weights[: split - 1], moved))
        aucs.append(won / (split * (total - split)))
    return float(np.mean(aucs))


def largest_near(weights: Sequence[float], index: int, radius: int) -> tuple[float, float]:
    """The chance that a largest weight lies within `radius` tokens of `index`, and that a random token does.

    Of several largest weights one is drawn: weights of spans have plateaus, and counting any of them as a hit would
    reward wide ones, which a random token has no match for. NaN without weights.

    >>> largest_near([0, 5, 5, 1], 0, 1)
    (0.5, 0.5)
    """
    weights = np.asarray(weights, dtype=float)
    near = np.abs(np.arange(len(weights)) - index) <= radius
    if not len(weights):
        return np.nan, np.nan
    return float(near[weights == weights.max()].mean()), float(near.mean())


def _over(others: np.ndarray, value: float) -> float:
    """How many of the others are larger, ties half."""
    return float(np.sum(others > value) + 0.5 * np.sum(others == value))
