"""The solvers that `span_search.py` compares with, each as fast as the common accuracy allows.

An entropic peer gets the loosest stopping rule that brings `|value - oracle|` to at most 0.05 eps on a sample of pairs.
Its batch size and dtype are the fastest under that rule. Its value is the dual value at its own row potentials,
`<a, f> + <b, g>`, with g the exact column update of f. That is second order in the error of f, which favours the peer.
This evaluation is not timed, and neither is cutting, stacking and converting the cost blocks.

Legend: P pairs, n/m tokens of a pair's spans, C costs in units of nbar, eps in the same units.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import ot as pot
import torch
from measure import best_times
from ot.batch import solve_batch
from scipy.special import logsumexp

try:
    import geomloss.ot
except ImportError:
    print("geomloss is not installed, so it is not measured: pip install geomloss")
    geomloss = None

ACCURACY = 0.05  # of eps
MAX_ITERATIONS = 5000
_TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
_ITERATIONS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True)
class Peer:
    """Another project's solver.

    Attributes:
        name: of the library and the call.
        target: the planned ratio of its time to our search's; None without a target.
        solve: `(cost, epsilon, stop) -> evidence`; the cost is (n, m) float64 numpy, or a (B, n, m) torch tensor.
        row_potentials: `(evidence, epsilon) -> (n,)` or (B, n) float64 numpy; None if it does not solve for W_eps.
        rule: the library's name for `stop`.
        stops: values of `stop` to try, loosest first.
        batched: whether it solves batches.
        dtypes: to try, fastest first.
    """

    name: str
    target: float | None
    solve: Callable
    row_potentials: Callable | None
    rule: str = ""
    stops: tuple[float, ...] = (0.0,)
    batched: bool = False
    dtypes: tuple[torch.dtype, ...] = (torch.float64,)

    def inputs(self, costs: list[np.ndarray], setting: Setting) -> list:
        if not self.batched:
            return costs
        parts = [costs[i : i + setting.batch] for i in range(0, len(costs), setting.batch)]
        return [torch.from_numpy(np.stack(part)).to(setting.dtype) for part in parts]

    def run(self, inputs: list, epsilon: float, setting: Setting) -> list:
        with warnings.catch_warnings():  # POT warns of every overflow and of every solve that hit its iteration limit
            warnings.simplefilter("ignore")
            return [self.solve(cost, epsilon, setting.stop) for cost in inputs]


@dataclass(frozen=True)
class Setting:
    """A peer's settings. `error` is the largest on the calibration pairs, in eps; None without W_eps."""

    stop: float
    dtype: torch.dtype = torch.float64
    batch: int = 1
    error: float | None = None

    @property
    def met(self) -> bool:
        return self.error is None or self.error <= ACCURACY


def _pot_loop(method: str) -> Callable:
    how = {"method": method, "numItermax": MAX_ITERATIONS, "log": True, "warn": False}
    return lambda cost, epsilon, stop: pot.sinkhorn2([], [], cost, epsilon, stopThr=stop, **how)[1]


def _pot_batch(method: str) -> Callable:
    how = {"max_iter": MAX_ITERATIONS, "method": method, "reg_type": "kl", "grad": "detach"}
    return lambda cost, epsilon, stop: solve_batch(cost, epsilon, tol=stop, **how)


def _log_scalings(log: dict, epsilon: float) -> np.ndarray:
    log_u = log["log_u"] if "log_u" in log else np.log(log["u"])
    return epsilon * (log_u + np.log(len(log_u)))


def _batch_scalings(in_log_domain: bool) -> Callable:
    def potentials(result, epsilon):
        scalings = result.potentials[0].double()
        log_u = scalings if in_log_domain else scalings.log()
        return (epsilon * (log_u + np.log(log_u.shape[1]))).numpy()

    return potentials


def _geomloss(cost, epsilon, stop):
    return geomloss.ot.solve_batch(cost, reg=epsilon, max_iter=int(stop))


def _geomloss_potentials(result, epsilon):
    return result.potential_a.double().numpy()


def _emd2(cost, epsilon, stop):
    return pot.emd2([], [], cost)


_BOTH = (torch.float32, torch.float64)
PEERS = (
    Peer("POT sinkhorn2, sinkhorn_log, loop", 30, _pot_loop("sinkhorn_log"), _log_scalings, "stopThr", _TOLERANCES),
    Peer("POT sinkhorn2, sinkhorn, loop", None, _pot_loop("sinkhorn"), _log_scalings, "stopThr", _TOLERANCES),
    Peer(
        "POT ot.batch, log_sinkhorn", 10, _pot_batch("log_sinkhorn"), _batch_scalings(True), "tol", _TOLERANCES, True,
        _BOTH,
    ),
    Peer("POT ot.batch, sinkhorn", None, _pot_batch("sinkhorn"), _batch_scalings(False), "tol", _TOLERANCES, True),
    *([Peer("geomloss ot.solve_batch", 10, _geomloss, _geomloss_potentials, "max_iter", _ITERATIONS, True, _BOTH)]
      if geomloss else []),
    Peer("POT emd2, loop (exact W_1, not W_eps)", 3, _emd2, None),
)  # fmt: skip


def calibrate(
    peer: Peer, costs: list[np.ndarray], oracle: np.ndarray, epsilon: float, batches: tuple[int, ...]
) -> list[Setting]:
    """Return the loosest setting that is accurate enough on `costs`, for each batch size, or once if the peer loops.

    The search uses the smallest batches: in a larger batch every problem also gets the iterations of the others. If no
    setting is accurate enough, return the most accurate.
    """
    if peer.row_potentials is None:
        return [Setting(0.0)]
    tried: list[Setting] = []
    for dtype, stop in itertools.product(peer.dtypes, peer.stops):
        setting = Setting(stop, dtype, min(batches) if peer.batched else 1)
        results = peer.run(peer.inputs(costs, setting), epsilon, setting)
        potentials = [peer.row_potentials(result, epsilon) for result in results]
        potentials = [f for part in potentials for f in part] if peer.batched else potentials
        values = [dual_value(cost, f, epsilon) for cost, f in zip(costs, potentials, strict=True)]
        error = float(np.nan_to_num(np.abs(np.array(values) - oracle), nan=np.inf).max() / epsilon)
        tried.append(replace(setting, error=error))
        if tried[-1].met:
            break
    chosen = min(tried, key=lambda setting: setting.error)
    return [replace(chosen, batch=batch) for batch in batches] if peer.batched else [chosen]


def fastest(peer: Peer, settings: list[Setting], costs: list[np.ndarray], epsilon: float) -> tuple[Setting, float]:
    """Return the setting that solves `costs` in the least time, and its seconds per pair."""
    seconds = []
    for setting in settings:
        solve = partial(peer.run, peer.inputs(costs, setting), epsilon, setting)
        seconds.append(best_times({peer.name: solve}, 2, at_least=0, quiet=True)[0][peer.name] / len(costs))
    best = int(np.argmin(seconds))
    return settings[best], seconds[best]


def dual_value(cost: np.ndarray, f: np.ndarray, epsilon: float) -> float:
    """Return `<a, f> + <b, g>` at the exact column update g of f."""
    g = -epsilon * (logsumexp((f[:, None] - cost) / epsilon, axis=0) - np.log(len(f)))
    return float(f.mean() + g.mean())


def oracle_minimum(costs: list[np.ndarray], entropic: Callable, epsilon: float) -> float:
    """Return the smallest oracle value of `costs`; bounds at f = 0 and g = 0 order the search and end it early."""
    zero = [max(dual_value(c, np.zeros(len(c)), epsilon), dual_value(c.T, np.zeros(len(c.T)), epsilon)) for c in costs]
    best = np.inf
    for which in np.argsort(zero):
        if zero[which] > best:
            break
        best = min(best, entropic(costs[which], epsilon))
    return best
