"""Entropic transport by over-relaxed scaling of the kernel `exp(-C / eps)`, stabilised by absorption.

The plan is `gamma = u K v`, `K = exp((f + g - C) / eps)`, with potentials f, g in the units of C. Iterations change u
and v only. A scaling that drifts by more than e^10 is folded into f or g, and the kernel is built again. f and g start
at the row and column minima of C, u and v at the masses: every row and column of K then has an entry of 1.

Over-relaxation multiplies by the update to the power omega (Thibault et al. 2021, "Overrelaxed Sinkhorn-Knopp algorithm
for regularized optimal transport"). Omega follows from the observed rate, as in Young's adaptive SOR. It falls back to
1 for a problem whose dual value drops.
"""

import math

import torch

from openrlhf_shear.transport.tiles import CostBlocks

_DRIFT = 10.0  # log of the largest scaling left outside the potentials
# Kernel entries below e^-76 become 0: they or their products would be denormal numbers, which slow a CPU down tenfold.
_LOG_FLOOR = -76.0
# Between two absorptions scalings can drift far beyond e^10. While they are at most e^25, a lost entry has a density
# below e^-26. Beyond, the dual value is that of another problem, and no bound.
_SOUND = 25.0
_OMEGA_START, _OMEGA_MAX = 1.5, 1.9
# Below this many entries torch's CPU bmm does not use MKL, and is faster with the vector on the right.
_SMALL_BLOCK = 400


class Scaling:
    """Problems of a batch that are still being solved; `index` holds their positions in the batch."""

    _PER_PROBLEM = ("index", "kernel", "transposed", "f", "g", "a", "b", "u", "v", "omega", "dual", "error", "drift")

    def __init__(self, blocks: CostBlocks, epsilon: float):
        self.cost, self.epsilon = blocks.cost, epsilon
        self.index = torch.arange(len(blocks.cost), device=blocks.cost.device)
        self.a, self.b = blocks.masses()
        self.u, self.v = self.a.clone(), self.b.clone()
        self.f = blocks.cost.amin(2).masked_fill_(~blocks.rows, 0)
        self.g = (blocks.cost - self.f[:, :, None]).amin(1).masked_fill_(~blocks.columns, 0)
        self.kernel = self._kernel(self.index, self.f, self.g)
        self.transposed = self.kernel.transpose(1, 2).contiguous()
        self.omega = torch.full_like(self.a[:, :1], _OMEGA_START)
        self.dual = torch.full_like(self.a[:, 0], -torch.inf)
        self.error = torch.full_like(self.dual, torch.inf)
        self.drift = torch.zeros_like(self.dual)  # log of the largest scaling

    def __len__(self) -> int:
        return len(self.index)

    def iterate(self, iterations: int) -> None:
        """Run `iterations` iterations, end with an exact column update, and update the dual value and the error.

        After an exact column update the plan has mass 1, so `<a, f> + <b, g>` is the dual value: a lower bound for a
        problem that is `sound`.
        """
        for _ in range(iterations - 1):
            self._scale_rows(self.omega)
            self._scale_columns(self.omega)
        self._scale_rows(self.omega)
        self._scale_columns(None)
        before_dual, before_error = self.dual, self.error
        f, g = self.potentials()
        self.dual = (self.a * f).sum(1) + (self.b * g).sum(1)
        self.drift = torch.maximum((f - self.f).abs().amax(1), (g - self.g).abs().amax(1)) / self.epsilon
        error = (self._row_sums() - self.a).abs().sum(1)
        self.error = torch.where(self.dual.isfinite(), error, torch.nan)
        self._choose_omega(before_dual, (self.error / before_error) ** (1 / iterations))

    @property
    def sound(self) -> torch.Tensor:
        """Whether the kernel's lost entries carry no mass, (P,) bool: the dual value and the error are right."""
        return self.drift <= _SOUND

    def potentials(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return f (P, n) and g (P, m) of the current plan, 0 at padding."""
        f = self.f + self.epsilon * torch.where(self.a > 0, self.u / self.a, 1).log()
        g = self.g + self.epsilon * torch.where(self.b > 0, self.v / self.b, 1).log()
        return f, g

    def absorb(self) -> None:
        """Fold scalings that drifted far into the potentials, and build the kernels of these problems again."""
        far = torch.nonzero(self.drift > _DRIFT)[:, 0]
        if len(far) == 0:
            return
        f, g = self.potentials()
        self.f[far], self.g[far] = f[far], g[far]
        self.u[far], self.v[far] = self.a[far], self.b[far]
        self.kernel[far] = self._kernel(self.index[far], f[far], g[far])
        self.transposed[far] = self.kernel[far].transpose(1, 2)

    def keep(self, which: torch.Tensor) -> None:
        """Keep only the problems `which` (positions in this state, not in the batch)."""
        for name in self._PER_PROBLEM:
            setattr(self, name, getattr(self, name)[which])

    def _choose_omega(self, before_dual: torch.Tensor, rate: torch.Tensor) -> None:
        """Choose SOR's optimum 2 / (1 + sqrt(1 - k)); k is the plain rate that explains the observed `rate`."""
        omega = self.omega[:, 0]
        plain = (rate + omega - 1).square() / (rate * omega.square())
        optimum = 2 / (1 + (1 - plain.clamp(max=1)).sqrt())
        slow = (rate > omega - 1) & (rate < 1)  # at a rate of omega - 1 or less, omega is at or above its optimum
        omega = torch.where(slow, optimum.clamp(_OMEGA_START, _OMEGA_MAX), omega)
        # Allow for the rounding of a dual value: otherwise a converged problem would seem to drop.
        dropped = self.dual < before_dual - 1e-6 * before_dual.abs()
        self.omega = torch.where(dropped, 1, omega)[:, None]

    def _kernel(self, index: torch.Tensor, f: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        exponent = (f[:, :, None] + g[:, None, :]).sub_(self.cost[index]).div_(self.epsilon)
        kernel = exponent.clamp_(min=_LOG_FLOOR).exp_()
        return torch.nn.functional.threshold_(kernel, 1.01 * math.exp(_LOG_FLOOR), 0)

    def _row_sums(self) -> torch.Tensor:
        return self.u * _times(self.v, self.transposed, self.kernel)

    # Padding has mass 0 and sum 0; the addend avoids 0 / 0.
    def _scale_rows(self, omega: torch.Tensor | None) -> None:
        ratio = self.a / (self._row_sums() + (self.a == 0))
        self.u = self.u * (ratio if omega is None else _power(ratio, omega))

    def _scale_columns(self, omega: torch.Tensor | None) -> None:
        sums = self.v * _times(self.u, self.kernel, self.transposed)
        ratio = self.b / (sums + (self.b == 0))
        self.v = self.v * (ratio if omega is None else _power(ratio, omega))


def _power(base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Return `base ** exponent`; torch.pow is ten times slower on a CPU."""
    return (base.log() * exponent).exp()


def _times(vector: torch.Tensor, kernel: torch.Tensor, transposed: torch.Tensor) -> torch.Tensor:
    """Return `vector @ kernel` of each problem: (P, n) and (P, n, m) give (P, m); `transposed` is the transpose."""
    if kernel.is_cuda:  # bmm would round to TF32 if the process allows it
        return (kernel * vector[:, :, None]).sum(1)
    if kernel.shape[1] * kernel.shape[2] < _SMALL_BLOCK:
        return torch.bmm(transposed, vector[:, :, None])[:, :, 0]
    return torch.bmm(vector[:, None, :], kernel)[:, 0, :]
