"""Entropic optimal transport between uniform measures, in batches.

    W_eps(P, Q) = min over couplings gamma of <C, gamma> + eps * KL(gamma | P x Q)

The value is the dual value `<a, f> + <b, g>` after an exact column update. At any iteration it is a lower bound of
W_eps, and its gap is of second order in the marginal error. Next: `credit.apply`, from weights to advantages.
"""

from dataclasses import dataclass, fields, replace
from typing import Self

import torch

from openrlhf_shear.transport.geometry import token_costs
from openrlhf_shear.transport.scaling import Scaling
from openrlhf_shear.transport.tiles import CostBlocks

TOLERANCE = 1e-3
MAX_ITERATIONS = 5000
CHECK_EVERY = 10


@dataclass(frozen=True)
class SinkhornResult:
    """Results of P solves, in units of the cost; the plan is `a b exp((f + g - C) / eps)`."""

    value: torch.Tensor  # (P,) W_eps
    f: torch.Tensor  # (P, n) potentials
    g: torch.Tensor  # (P, m)
    iterations: torch.Tensor  # (P,) int64
    marginal_error: torch.Tensor  # (P,) `sum_i |sum_j gamma_ij - a_i|`; the column sums are exact
    converged: torch.Tensor  # (P,) bool, `marginal_error <= tolerance`
    dropped: torch.Tensor  # (P,) bool, stopped because `value` exceeds the limit, and so W_eps does too

    def __getitem__(self, which: slice) -> Self:
        return SinkhornResult(*(getattr(self, field.name)[which] for field in fields(self)))

    @classmethod
    def cat(cls, parts: list[Self]) -> Self:
        """Concatenate results of the same n and m."""
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def padded(self, n: int, m: int) -> Self:
        """Return the results with potentials of `n` and `m` tokens; padding is 0."""
        f, g = (
            torch.nn.functional.pad(potentials, (0, width - potentials.shape[1]))
            for potentials, width in ((self.f, n), (self.g, m))
        )
        return replace(self, f=f, g=g)

    def put(self, where: torch.Tensor, part: Self) -> None:
        """Replace the results at the positions `where` (int64) by those of `part`."""
        for field in fields(self):
            getattr(self, field.name)[where] = getattr(part, field.name)


def solve_sinkhorn(
    blocks: CostBlocks,
    epsilon: float,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
    limits: torch.Tensor | None = None,
) -> SinkhornResult:
    """Solve a batch until each problem's marginal error is at most `tolerance`, or for `max_iterations`.

    Args:
        tolerance: of the marginal error, which is a sum of masses.
        limits: (P,) in units of the cost; a problem whose lower bound exceeds its limit is dropped. None: no limit.
    """
    with torch.autocast(blocks.cost.device.type, enabled=False):  # it would round the kernel products to bfloat16
        f, g = torch.zeros_like(blocks.cost[:, :, 0]), torch.zeros_like(blocks.cost[:, 0, :])
        error = torch.full_like(f[:, 0], torch.inf)
        limits = torch.full_like(error, torch.inf) if limits is None else limits
        dropped = torch.zeros_like(error, dtype=torch.bool)
        iterations = torch.zeros_like(error, dtype=torch.int64)
        state, done = Scaling(blocks, epsilon), 0
        while len(state):
            state.iterate(CHECK_EVERY)
            done += CHECK_EVERY
            # A problem ends when it converges, exceeds its limit, fails (is not finite) or runs out of iterations.
            unconverged = (state.error > tolerance) | ~state.sound
            beyond = (state.dual > limits[state.index]) & (state.error > tolerance) & state.sound
            going = unconverged & (state.error < torch.inf) & (done < max_iterations) & ~beyond
            over = torch.nonzero(~going)[:, 0]
            if len(over):
                where = state.index[over]
                last_f, last_g = state.potentials()
                f[where], g[where] = last_f[over], last_g[over]
                error[where] = torch.where(state.sound, state.error, torch.nan)[over]
                dropped[where], iterations[where] = beyond[over], done
                state.keep(torch.nonzero(going)[:, 0])
            state.absorb()
        failed = torch.nonzero(~(error < torch.inf))[:, 0]
        if len(failed):
            part = CostBlocks(blocks.cost[failed], blocks.rows[failed], blocks.columns[failed])
            f[failed], g[failed], error[failed], iterations[failed] = log_domain_potentials(
                part, epsilon, tolerance, max_iterations
            )
            dropped[failed] = False
        a, b = blocks.masses()
        value = (a * f).sum(1) + (b * g).sum(1)
        return SinkhornResult(value, f, g, iterations, error, error <= tolerance, dropped)


def log_domain_potentials(
    blocks: CostBlocks, epsilon: float, tolerance: float, max_iterations: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Solve in the log domain, in float64: slow but safe, for problems that leave the range of float32.

    All problems iterate until the last has converged, and end with an exact column update.

    Returns:
        Potentials (P, n) and (P, m) float32 in units of the cost (0 at padding), marginal errors (P,) float32, and
        iterations (P,) int64.
    """
    a, b = (mass.double() for mass in blocks.masses())
    cost = blocks.cost.double() / epsilon
    log_a, log_b = a.log(), b.log()
    g = torch.zeros_like(b)
    for done in range(1, max_iterations + 1):
        f = -torch.logsumexp(log_b[:, None, :] + g[:, None, :] - cost, dim=2).masked_fill(~blocks.rows, 0)
        g = -torch.logsumexp(log_a[:, :, None] + f[:, :, None] - cost, dim=1).masked_fill(~blocks.columns, 0)
        if done % CHECK_EVERY == 0 or done == max_iterations:
            rows = torch.logsumexp(log_b[:, None, :] + g[:, None, :] - cost, dim=2) + log_a + f
            error = (rows.exp() - a).abs().sum(1)
            if bool((error <= tolerance).all()):
                break
    iterations = torch.full_like(error, done, dtype=torch.int64)
    return (f * epsilon).float(), (g * epsilon).float(), error.float(), iterations


def sinkhorn_distance(x: torch.Tensor, y: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return W_eps, () float32, of points (n, d) and (m, d) of any float dtype; uniform masses, Euclidean cost.

    >>> sinkhorn_distance(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]), epsilon=0.1).item()
    5.0

    Raises:
        ValueError: the shapes do not match, or epsilon (in the units of the points) is not positive.
        RuntimeError: the solve does not reach its tolerance.
    """
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or 0 in (len(x), len(y)):
        raise ValueError(f"points must be (n, d) and (m, d), n and m at least 1: got {(*x.shape,)} and {(*y.shape,)}")
    if not epsilon > 0:
        raise ValueError(f"epsilon must be positive: got {epsilon}")
    cost = token_costs(x, y, 1.0, workspace_bytes=2**24)[None]
    everything = torch.ones_like(cost, dtype=torch.bool)
    result = solve_sinkhorn(CostBlocks(cost, everything[:, :, 0], everything[:, 0, :]), epsilon)
    if not bool(result.converged):
        raise RuntimeError(f"Sinkhorn stopped at a marginal error of {result.marginal_error.item():.2g}")
    return result.value[0]
