"""The oracle of entropic transport: POT in float64 and the log domain, to a marginal error of 1e-9.

Load it with `runpy.run_path(Path(__file__).with_name("oracle.py"))`; it shares no code with the package.
"""

import numpy as np
import ot as pot
from scipy.special import logsumexp


def entropic(cost: np.ndarray, epsilon: float) -> tuple[float, float]:
    """`<C, gamma> + eps KL(gamma | P x Q)` and `<C, gamma>` of the entropic plan between uniform masses.

    Sinkhorn converges sublinearly on some problems (identical prefixes); these are finished by Newton's method on the
    dual, in g: gradient `b - gamma^T 1`, Hessian `-(diag(gamma^T 1) - gamma^T diag(1 / a) gamma) / eps`.
    """
    n, m = cost.shape
    a, b = np.full(n, 1 / n), np.full(m, 1 / m)
    plan, log = pot.sinkhorn(
        a, b, cost, epsilon, method="sinkhorn_log", stopThr=1e-9, numItermax=300, warn=False, log=True
    )
    g = epsilon * (log["log_v"] - np.log(b))
    for _ in range(100):
        f = -epsilon * logsumexp((g - cost) / epsilon, b=b, axis=1)
        plan = np.outer(a, b) * np.exp((f[:, None] + g - cost) / epsilon)
        gradient, mass = b - plan.sum(0), plan.sum(0)
        if np.abs(gradient).sum() <= 1e-9:
            break
        hessian = np.diag(mass) - plan.T @ (plan / a[:, None])
        step = epsilon * np.linalg.lstsq(hessian, gradient, rcond=1e-14)[0]
        value, size = a @ f + b @ g, 1.0
        while size > 1e-6 and _dual(cost, epsilon, g + size * step) < value:
            size /= 2
        g = g + size * step
    assert np.abs(plan.sum(0) - b).sum() <= 1e-9 and np.abs(plan.sum(1) - a).sum() <= 1e-9
    positive = plan[plan > 0]
    transport = (plan * cost).sum()
    return transport + epsilon * (positive * np.log(positive * n * m)).sum(), transport


def _dual(cost: np.ndarray, epsilon: float, g: np.ndarray) -> float:
    return (-epsilon * logsumexp((g - cost) / epsilon - np.log(len(g)), axis=1)).mean() + g.mean()
