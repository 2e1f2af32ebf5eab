"""A probe of the first optimizer step: how many micro-batches' gradients are in what the optimizer is about to apply.

Counters cannot tell: DeepSpeed calls `backward` for every micro-batch also where it keeps the last gradient alone. The
probe reads the gradient of one small parameter twice: from autograd, a micro-batch at a time, and from DeepSpeed, as
accumulated and averaged over the ranks. It looks which sum of the first the second is: of all, of the last ones, or of
some that least squares finds.
"""

import torch
from deepspeed.utils import safe_get_full_grad
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.fork.outcome import GradientLostError

logger = init_logger(__name__)
_ELEMENTS = 4096  # of the parameter's gradient; also how large a parameter should be
_MOST = 512  # micro-batches that are told apart; the rest counts as one
# Micro-batches count as lost where the others explain the accumulated gradient this much better than all of them do.
# Where gradients cancel, rounding to bfloat16 leaves it far from both.
_BETTER = 0.2


class Arrival:
    """The probe of one model; one `check`, after the last backward of the first optimizer step with a gradient."""

    def __init__(self, engine, name: str):
        """
        Args:
            engine: DeepSpeed's.
            name: of the model, for messages.
        """
        self._engine, self._name = engine, name
        self._parameter = _probed(engine.module)
        self._hook = self._parameter.register_hook(self._collect)
        self._gradients: list[torch.Tensor] = []
        self._micro_batches = 0

    def begin_micro_batch(self) -> None:
        """Before its forward pass."""
        self._micro_batches += 1
        if len(self._gradients) < _MOST:
            self._gradients.append(torch.zeros(min(_size(self._parameter), _ELEMENTS)))

    def check(self) -> bool:
        """Before the optimizer step: whether there was a gradient to check; every rank calls this.

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
            return False  # nothing to look for; DeepSpeed skips a step that is not finite, and the books say so
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
        """Look no more."""
        self._hook.remove()

    def _collect(self, gradient: torch.Tensor) -> None:
        gathered = self._gradients[-1]
        gathered += gradient.detach().flatten()[: len(gathered)].float().cpu()


def arrivals(parts: torch.Tensor, held: torch.Tensor) -> int:
    """How many of the gradients `parts`, (n, d) float64, are in their sum `held`, (d,).

    >>> parts = torch.eye(3, 5, dtype=torch.float64)
    >>> arrivals(parts, parts.sum(0)), arrivals(parts, parts[2])
    (3, 1)
    """
    weights = torch.linalg.lstsq(parts.T, held[:, None], driver="gelsd").solution.flatten()
    last = torch.ones(len(parts), len(parts)).to(parts).triu()[1:]  # each row: only so many of the last
    kept = torch.cat([(weights > 0.5).to(parts)[None], last])
    off = (held - kept @ parts).norm(dim=1)
    best = int(off.argmin())
    if off[best] < _BETTER * (held - parts.sum(0)).norm():
        return int(kept[best].sum())
    return len(parts)


def _probed(module: torch.nn.Module) -> torch.nn.Parameter:
    """The smallest parameter of at least `_ELEMENTS`, else the largest; not LoRA's A, whose first gradient is 0."""
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    candidates = [p for n, p in named if "lora_A" not in n and "lora_embedding_A" not in n]
    enough = [p for p in candidates if _size(p) >= _ELEMENTS]
    return min(reversed(enough), key=_size) if enough else max(candidates, key=_size)


def _size(parameter: torch.nn.Parameter) -> int:
    return getattr(parameter, "ds_numel", parameter.numel())  # under ZeRO-3 a rank has only its part
