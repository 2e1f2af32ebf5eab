"""OpenRLHF's DeepSpeed strategy, with rotary frequencies that are float32 under ZeRO-3 too, and a best checkpoint kept.

While a model loads under ZeRO-3, DeepSpeed makes `torch.arange` give the model's dtype, and transformers 5 computes the
rotary frequencies with it: in bfloat16 they are off by up to 0.4%, by several radians at position 3000, and the policy
that is trained is not the one that vLLM samples from.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from openrlhf.utils.deepspeed import DeepspeedStrategy

BEST = "best"  # upstream's prefix of the best checkpoint's tag


class ShearStrategy(DeepspeedStrategy):
    """Restores rotary frequencies before DeepSpeed wraps a model, and deletes the old best checkpoint last."""

    def prepare(self, *args):
        for arg in args:
            model = arg[0] if isinstance(arg, tuple) else arg
            if model is not None:
                restore_rotary_frequencies(model)
        return super().prepare(*args)

    def save_ckpt(
        self,
        model,
        save_dir,
        tag=None,
        max_num=3,
        max_mem=1000,
        client_state=None,
        save_latest=True,
        metric_value=None,
        metric_key=None,
    ) -> None:
        """As upstream's, which deletes the best checkpoint before it saves a better one: here the old one goes last."""
        if tag is None or not tag.startswith(BEST):
            kept = (max_num, max_mem, client_state, save_latest, metric_value, metric_key)
            super().save_ckpt(model, save_dir, tag, *kept)
            return
        model.save_checkpoint(save_dir, tag=tag, client_state=client_state or {}, save_latest=save_latest)
        torch.distributed.barrier()
        if self.is_rank_0():
            self._write_ckpt_metric(str(Path(save_dir) / tag), metric_value, metric_key=metric_key)
            remove_others(Path(save_dir), f"{BEST}*", tag)


def remove_others(folder: Path, pattern: str, kept: str) -> None:
    """Delete the folders of a pattern but one."""
    for path in folder.glob(pattern):
        if path.is_dir() and path.name != kept:
            shutil.rmtree(path)


def restore_rotary_frequencies(model: torch.nn.Module) -> None:
    """Make the buffers of rotary embeddings anew where they are not float32."""
    for module in model.modules():
        rotary = "RotaryEmbedding" in type(module).__name__ and hasattr(module, "config")
        if rotary and any(b.is_floating_point() and b.dtype != torch.float32 for b in module.buffers()):
            for name, buffer in type(module)(module.config).named_buffers():
                setattr(module, name, buffer.to(getattr(module, name).device))
