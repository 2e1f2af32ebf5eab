"""Refusal of checkpoints that DeepSpeed cannot load: other ranks, another ZeRO stage, or another model."""

from pathlib import Path

import torch

from openrlhf_shear.train.screen.outcome import RefusedError


def refuse_another_world(checkpoint: Path, engine) -> None:
    """Refuse a checkpoint with other ranks, another ZeRO stage, or other weights than `engine`.

    DeepSpeed would raise different errors on different ranks. The driver compares fingerprints before
    (`fingerprint.check`), but older checkpoints and the critic's have none.

    Raises:
        RefusedError: the checkpoint cannot be loaded into `engine`.
    """
    file = min(checkpoint.glob("*mp_rank_00_model_states.pt"))
    saved = torch.load(file, map_location="cpu", mmap=True, weights_only=False)  # mmap: tensors stay on the disk
    stage = saved["ds_config"]["zero_optimization"]["stage"]
    for what, before, now in (
        ("data-parallel ranks", saved["dp_world_size"], engine.dp_world_size),
        ("tensor-parallel ranks", saved["mp_world_size"], engine.mp_world_size),
        ("--ds.zero_stage", stage, engine.zero_optimization_stage()),
    ):
        if before != now:
            raise RefusedError(
                f"{what} must be the {before} that saved {checkpoint}: got {now}; use {before}, another --ckpt.path, "
                "or DeepSpeed's converter (docs/reliability.md: another world by itself)"
            )
    before = {name: tuple(shape) for group in saved["param_shapes"] for name, shape in group.items()}
    trained = [(name, weight) for name, weight in engine.module.named_parameters() if weight.requires_grad]
    now = {name: tuple(getattr(weight, "ds_shape", weight.shape)) for name, weight in trained}
    if differ := sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)):
        was, is_now = (shapes.get(differ[0], "not there") for shapes in (before, now))
        raise RefusedError(
            f"{checkpoint} is of another model: {len(differ)} weights differ, {differ[0]} was {was}, is {is_now}; use "
            "the model that saved it, or another --ckpt.path"
        )
