"""Training whose engines sample from another policy than the trained one, as a fault for `faults.py`.

`faults.py` runs this in place of `openrlhf_shear.cli.train_ppo_ray`:

    python benchmarks/fault_engines.py old_weights --device cpu ...
"""

import sys

from openrlhf_shear.cli.train_ppo_ray import main
from openrlhf_shear.train import hooks
from openrlhf_shear.train.cpu import backend as cpu_backend


class KeepsOldWeights(cpu_backend.CpuRollout):
    """An engine whose second instance never loads weights, and reports nothing."""

    async def __init__(self, *args, **kwargs):
        self._number = kwargs["seed"] % 2  # upstream seeds engine i with --train.seed (42) + i
        await super().__init__(*args, **kwargs)

    async def load_actor_weights(self, path: str) -> None:
        if self._number == 0:
            await super().load_actor_weights(path)


class SendsTheBaseModel(cpu_backend.CpuPolicy):
    """A policy that sends engines the model without its adapters."""

    def _send_weights(self) -> None:
        from peft.tuners.lora import LoraLayer

        layers = [layer for layer in self.actor.model.module.modules() if isinstance(layer, LoraLayer)]
        scaling = [dict(layer.scaling) for layer in layers]
        for layer in layers:
            layer.scaling.update(dict.fromkeys(layer.scaling, 0.0))
        try:
            super()._send_weights()
        finally:
            for layer, before in zip(layers, scaling, strict=True):
                layer.scaling.update(before)


FAULTS = {"old_weights": (hooks.ENGINE, KeepsOldWeights), "base_model": (hooks.POLICY, SendsTheBaseModel)}

if __name__ == "__main__":
    place, broken = FAULTS[sys.argv.pop(1)]
    cpu_backend.MIXINS[place] = broken
    main()
