"""The oracle of entropic transport: POT in float64 and the log domain, to a marginal error of 1e-9.

It shares no code with the package.
"""

import numpy as np
import ot as pot
from scipy.special import logsumexp


def entropic(cost: np.ndarray, epsilon: float) -> float:
    """`<C, gamma> + eps KL(gamma | P x Q)` of the entropic plan between uniform masses.

    POT's Sinkhorn begins. It converges sublinearly on some problems (identical prefixes), and hardly ever on others
    (tight clusters of unequal mass). So Newton's method on the dual finishes, from a larger epsilon where needed.
    """
    n, m = cost.shape
    a, b = np.full(n, 1 / n), np.full(m, 1 / m)
    _, log = pot.sinkhorn(a, b, cost, epsilon, method="sinkhorn_log", stopThr=1e-9, numItermax=20, warn=False, log=True)
    g, plan = _newton(cost, epsilon, epsilon * (log["log_v"] - np.log(b)))
    if not _error(plan) <= 1e-9:
        g = np.zeros(m)
        for larger in np.geomspace(max(cost.max(), epsilon), epsilon, 25):
            g, plan = _newton(cost, larger, g)
    assert _error(plan) <= 1e-9
    positive = plan[plan > 0]
    return (plan * cost).sum() + epsilon * (positive * np.log(positive * n * m)).sum()


def _newton(cost: np.ndarray, epsilon: float, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """g and the plan: gradient `b - gamma^T 1`, Hessian `-(diag(gamma^T 1) - gamma^T diag(1 / a) gamma) / eps`."""
    n, m = cost.shape
    for _ in range(100):
        f = -epsilon * logsumexp((g - cost) / epsilon - np.log(m), axis=1)
        plan = np.exp((f[:, None] + g - cost) / epsilon) / (n * m)
        mass = plan.sum(0)
        gradient = 1 / m - mass
        if np.abs(gradient).sum() <= 1e-9:
            break
        hessian = np.diag(mass) - n * plan.T @ plan
        step = epsilon * np.linalg.lstsq(hessian, gradient, rcond=1e-14)[0]
        value, size = f.mean() + g.mean(), 1.0
        while size > 1e-6 and not _dual(cost, epsilon, g + size * step) >= value:
            size /= 2
        g = g + size * step
    return g, plan


def _error(plan: np.ndarray) -> float:
    n, m = plan.shape
    return np.abs(plan.sum(0) - 1 / m).sum() + np.abs(plan.sum(1) - 1 / n).sum()


def _dual(cost: np.ndarray, epsilon: float, g: np.ndarray) -> float:
    return (-epsilon * logsumexp((g - cost) / epsilon - np.log(len(g)), axis=1)).mean() + g.mean()
