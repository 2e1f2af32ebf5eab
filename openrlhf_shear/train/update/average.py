"""Moving average of the policy's weights, in float32 (--train.enable_ema).

OpenRLHF averages in bfloat16, in which most steps round to nothing. Here each rank averages its own part of the float32
master weights that its optimizer steps, on the CPU; OpenRLHF's average model gets them before it is saved.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from deepspeed.runtime.zero.partition_parameters import GatheredParameters
from deepspeed.utils import safe_get_full_fp32_param
from openrlhf.utils.logging_utils import init_logger

logger = init_logger(__name__)


class WeightAverage:
    """Exponential moving average of a rank's master weights: a <- beta a + (1 - beta) w after each optimizer step."""

    def __init__(self, engine):
        """Begin at the weights of DeepSpeed's engine."""
        self._engine = engine
        self.parts = [weights.detach().float().cpu().clone() for weights in masters(engine)]

    def update(self, beta: float) -> None:
        """Take in the current weights."""
        for part, weights in zip(self.parts, masters(self._engine), strict=True):
            part.lerp_(weights.detach().to(part), 1 - beta)

    def copy_to(self, model: torch.nn.Module) -> None:
        """Copy the average into a model of the policy's structure, in its dtype; every rank calls this."""
        pairs = zip(self._engine.module.parameters(), model.parameters(), strict=True)
        with self.in_place_of_masters():
            for weight, target in pairs:
                if not weight.requires_grad:
                    continue
                average = safe_get_full_fp32_param(weight)
                with GatheredParameters([target], modifier_rank=0, enabled=hasattr(target, "ds_id")):
                    target.data.copy_(average)

    @contextmanager
    def in_place_of_masters(self) -> Iterator[None]:
        """Let the master weights be the average inside the context, where DeepSpeed can join them over ranks."""
        own: list[torch.Tensor] = []
        try:
            for part, weights in zip(self.parts, masters(self._engine), strict=True):
                own.append(weights.detach().cpu().clone())
                weights.data.copy_(part)
            yield
        finally:
            for weights, values in zip(masters(self._engine), own, strict=False):
                weights.data.copy_(values)

    def save(self, folder: Path, steps: int) -> None:
        """Save this rank's part into a checkpoint."""
        torch.save({"parts": self.parts, "steps": steps}, folder / _file())

    def load(self, folder: Path) -> int:
        """Load this rank's part from a checkpoint; return its steps. Without one begin at the current weights."""
        state = torch.load(folder / _file(), weights_only=True) if (folder / _file()).is_file() else {}
        if "parts" not in state:
            logger.warning(f"{folder} has no moving average: it begins at the checkpoint's weights")
            return 0
        self.parts = state["parts"]
        return state["steps"]


def masters(engine) -> list[torch.Tensor]:
    """Return the flat float32 weights that this rank's optimizer steps, under ZeRO-1 to ZeRO-3."""
    if engine.zero_optimization_stage() == 3:
        return engine.optimizer.fp32_partitioned_groups_flat
    return engine.optimizer.single_partition_of_fp32_groups


def _file() -> str:
    return f"ema_rank{torch.distributed.get_rank()}.pt"
