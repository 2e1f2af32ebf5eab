"""Probe of the first optimizer step: checks that the gradient of every micro-batch reaches the optimizer.

Counters cannot tell: DeepSpeed runs `backward` for every micro-batch even where it keeps only the last gradient. So the
probe finds the sum of autograd's gradients that equals DeepSpeed's (docs/correctness.md#in-a-run). The candidates are
all micro-batches, the last n, and a subset found by least squares.
"""

import torch
from deepspeed.utils import safe_get_full_grad
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.train.screen.outcome import GradientLostError

logger = init_logger(__name__)
_ELEMENTS = 4096  # of the gradient that are compared; also the preferred size of the parameter
_MOST = 512  # micro-batches that are told apart; later ones count as part of the last
# Micro-batches count as lost if a subset leaves less than this share of the residual that the full sum leaves.
# Where gradients cancel, rounding to bfloat16 makes both residuals large.
_BETTER = 0.2


class Arrival:
    """Gradient probe of a model; it stops after the first optimizer step that has a gradient to check."""

    def __init__(self, engine, name: str):
        self._engine, self._name = engine, name
        self._parameter = _probed(engine.module)
        self._hook = self._parameter.register_hook(self._collect)
        self._gradients: list[torch.Tensor] = []
        self._micro_batches = 0

    def begin_micro_batch(self) -> None:
        """Start a new micro-batch; call it before the forward pass."""
        self._micro_batches += 1
        if len(self._gradients) < _MOST:
            self._gradients.append(torch.zeros(min(_size(self._parameter), _ELEMENTS)))

    def check(self) -> bool:
        """Check the accumulated gradient before the optimizer step; return whether there was a gradient to check.

        Every rank calls this.

        Raises:
            GradientLostError: the gradient of a micro-batch is not in the optimizer step.
        """
        parts = torch.stack(self._gradients).to(self._parameter.device)
        torch.distributed.all_reduce(parts)
        parts = parts.cpu().double() / torch.distributed.get_world_size()
        held = safe_get_full_grad(self._parameter)
        held = held.flatten()[: parts.shape[1]].cpu().double()
        number, self._micro_batches, self._gradients = self._micro_batches, 0, []
        parts = parts[parts.norm(dim=1) > 0]
        if not len(parts) or not parts.isfinite().all() or not held.isfinite().all():
            return False  # nothing to compare; DeepSpeed skips a step that is not finite, and the books report it
        self.stop()
        arrived = arrivals(parts, held)
        if arrived < len(parts):
            raise GradientLostError(
                f"the optimizer step of the {self._name} has the gradient of {arrived} of {len(parts)} micro-batches: "
                "DeepSpeed dropped the others (another version than this package knows?); nothing was applied"
            )
        logger.info(f"gradient check: {self._name}, {number} of {number} micro-batches are in the first optimizer step")
        return True

    def stop(self) -> None:
        """Remove the hook from the parameter."""
        self._hook.remove()

    def _collect(self, gradient: torch.Tensor) -> None:
        gathered = self._gradients[-1]
        gathered += gradient.detach().flatten()[: len(gathered)].float().cpu()


def arrivals(parts: torch.Tensor, held: torch.Tensor) -> int:
    """Return how many of the gradients `parts`, (n, d) float64, are in their sum `held`, (d,).

    >>> parts = torch.eye(3, 5, dtype=torch.float64)
    >>> arrivals(parts, parts.sum(0)), arrivals(parts, parts[2])
    (3, 1)
    """
    weights = torch.linalg.lstsq(parts.T, held[:, None], driver="gelsd").solution.flatten()
    last = torch.ones(len(parts), len(parts)).to(parts).triu()[1:]  # rows: the last n - 1, n - 2, ... 1
    masks = torch.cat([(weights > 0.5).to(parts)[None], last])
    off = (held - masks @ parts).norm(dim=1)
    best = int(off.argmin())
    if off[best] < _BETTER * (held - parts.sum(0)).norm():
        return int(masks[best].sum())
    return len(parts)


def _probed(module: torch.nn.Module) -> torch.nn.Parameter:
    """Return the smallest parameter of at least `_ELEMENTS`, else the largest; LoRA's A has a first gradient of 0."""
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    candidates = [p for n, p in named if "lora_A" not in n and "lora_embedding_A" not in n]
    enough = [p for p in candidates if _size(p) >= _ELEMENTS]
    return min(reversed(enough), key=_size) if enough else max(candidates, key=_size)


def _size(parameter: torch.nn.Parameter) -> int:
    return getattr(parameter, "ds_numel", parameter.numel())  # under ZeRO-3 a rank holds only its shard
