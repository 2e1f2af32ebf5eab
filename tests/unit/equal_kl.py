"""The gain at equal KL apart from the package: its influence function by numerical differentiation."""

import numpy as np
from scipy.stats import t

STEP = 1e-5  # of a seed's weight


def gain(weights, own, slow, fast) -> float:
    """The gain of a weighted mean over seeds; each arm has its (KL, score) of every seed."""
    at, low, high = (np.log(np.average(arm[0], weights=weights)) for arm in (own, slow, fast))
    on_curve = slow[1] + (at - low) / (high - low) * (fast[1] - slow[1])
    return np.average(own[1] - on_curve, weights=weights)


def gain_interval(own, slow, fast) -> list[float]:
    """The gain with its 95% interval: t, of the seeds' influences."""
    n = len(own[0])
    sides = [[gain(np.ones(n) + sign * STEP * seed, own, slow, fast) for seed in np.eye(n)] for sign in (1, -1)]
    influence = n * np.subtract(*sides) / (2 * STEP)
    mean, half = gain(np.ones(n), own, slow, fast), t.ppf(0.975, n - 1) * influence.std(ddof=1) / n**0.5
    return [mean, mean - half, mean + half]
