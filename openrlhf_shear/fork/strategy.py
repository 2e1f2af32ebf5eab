"""OpenRLHF's DeepSpeed strategy, with optimizer steps of all their micro-batches, rotary frequencies that are float32
under ZeRO-3 too, checkpoints that a run can be killed in the middle of, and saved models as large as the one that they
began with.

With dynamic batches OpenRLHF 0.11.2 sets one micro-batch a step, calls `backward` for each of several and `step` after
the last. DeepSpeed 0.19.6 takes every such `backward` for the end of a step, and under ZeRO-1 and ZeRO-2 it then
replaces the gradients that are there: the update is made of the last micro-batch alone.

While a model loads under ZeRO-3, DeepSpeed makes `torch.arange` give the model's dtype, and transformers 5 computes the
rotary frequencies with it: in bfloat16 they are off by up to 0.4%, by several radians at position 3000, and the policy
that is trained is not the one that vLLM samples from.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from openrlhf.models import Actor
from openrlhf.utils.deepspeed import DeepspeedStrategy
from openrlhf.utils.logging_utils import init_logger
from peft import PeftModel

from openrlhf_shear.fork import checkpoints, lora
from openrlhf_shear.fork.arrival import Arrival
from openrlhf_shear.fork.outcome import RefusedError
from openrlhf_shear.fork.saveable import repair_generation

logger = init_logger(__name__)
ACTOR, CRITIC = "_actor", "_critic"  # upstream's folders below CKPT_PATH
UNIVERSAL = "latest_universal"  # DeepSpeed's


class ShearStrategy(DeepspeedStrategy):
    """Ends optimizer steps where they end, restores rotary frequencies before DeepSpeed wraps a model, writes
    checkpoints aside and names them last.

    Attributes:
        loaded: the checkpoint that the last `load_ckpt` read; None for a fresh start.
        arrival: the probe of the first optimizer step; None before there is a model, and when it is done.
    """

    loaded: Path | None = None
    arrival: Arrival | None = None

    def prepare(self, *args):
        for arg in args:
            model = arg[0] if isinstance(arg, tuple) else arg
            if model is not None:
                restore_rotary_frequencies(model)
        return super().prepare(*args)

    def begin_micro_batch(self, engine, ends_step: bool | None) -> None:
        """Tell DeepSpeed, before a micro-batch's forward pass, whether an optimizer step ends with it.

        Args:
            ends_step: None where DeepSpeed's own counter knows (micro-batches of a fixed size).
        """
        if ends_step is not None:
            engine.set_gradient_accumulation_boundary(ends_step)
        if self.arrival is not None:
            self.arrival.begin_micro_batch()

    def optimizer_step(self, optimizer, model, scheduler, name="model", **kwargs) -> None:
        """As upstream's, which with micro-batches of a fixed size calls it after each of them.

        Raises:
            GradientLostError: in the first one, the gradient of a micro-batch is not in it.
        """
        engine = model.model if isinstance(model, Actor) else model
        if self.arrival is not None and engine.is_gradient_accumulation_boundary() and self.arrival.check():
            self.arrival = None
        super().optimizer_step(optimizer, model, scheduler, name=name, **kwargs)

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
        extra: Callable[[Path], None] | None = None,
    ) -> None:
        """A complete checkpoint, or none (see `checkpoints`); upstream deletes old ones first and names this one before
        other ranks have written it. Pruning is the trainer's, once all models are saved.

        Args:
            extra: writes more into the folder, on every rank.
        """
        folder, aside = Path(save_dir), f"{tag}{checkpoints.PARTIAL}"
        if self.is_rank_0():
            shutil.rmtree(folder / aside, ignore_errors=True)
            (folder / aside).mkdir(parents=True)
        torch.distributed.barrier()
        if not (folder / aside).is_dir():
            raise RuntimeError(f"rank {self.get_rank()} does not see {folder}: use a --ckpt.path that all nodes share")
        model.save_checkpoint(save_dir, tag=aside, client_state=client_state or {}, save_latest=False)
        if extra is not None:
            extra(folder / aside)
        torch.distributed.barrier()
        if self.is_rank_0():
            self._write_ckpt_metric(str(folder / aside), metric_value, metric_key=metric_key)
            checkpoints.commit(folder, tag, latest=save_latest)
        torch.distributed.barrier()

    def save_model(self, model, tokenizer, output_dir, **kwargs) -> None:
        """As upstream's, with tied weights once, in files that others may read as they may the configuration.

        Of a model with LoRA upstream saves the adapters alone, which only PEFT can load: they go into a folder below,
        and the merged model into this one.
        """
        policy, folder = self._unwrap_model(model), Path(output_dir)
        repair_generation(policy)
        if isinstance(policy, PeftModel):
            lora.save_merged(policy, output_dir, self.args.ds.zero_stage == 3)
            if self.is_rank_0():
                tokenizer.save_pretrained(output_dir)
            folder = folder / lora.ADAPTER
        with tied_weights_once(policy):
            super().save_model(model, tokenizer, str(folder), **kwargs)
        if self.is_rank_0():
            mode = Path(output_dir, "config.json").stat().st_mode & 0o777
            for file in Path(output_dir).rglob("*.safetensors"):
                file.chmod(mode)  # the library leaves that of its temporary files, for their owner alone

    def load_ckpt(self, model, load_dir, tag=None, **kwargs):
        """As upstream's, of the newest checkpoint that is complete, here and for the critic where there is one; of no
        folder but this.

        Raises:
            RefusedError: it was saved by another number of ranks.
        """
        if tag is None and self.use_ds_universal_ckpt:
            tag = checkpoints.named_in(Path(load_dir), UNIVERSAL)
        elif tag is None:
            choice = [self._newest(Path(load_dir))] if self.is_rank_0() else [None]
            torch.distributed.broadcast_object_list(choice)
            (tag,) = choice
            if tag is None:
                return None, {}
            refuse_another_world(Path(load_dir, tag), model)
        path, states = super().load_ckpt(model, load_dir, tag, **kwargs)
        self.loaded = path and Path(path).parent
        return path, states

    def _newest(self, folder: Path) -> str | None:
        """Says aloud what is passed over."""
        models = (ACTOR, CRITIC) if self.args.critic.model_name_or_path else (folder.name,)
        tag, skipped = checkpoints.find([folder.with_name(name) for name in models])
        for line in skipped:
            logger.warning(f"checkpoint passed over: {line}")
        logger.info(f"resuming from {folder / tag}" if tag else f"no complete checkpoint in {folder}: a fresh start")
        return tag


def refuse_another_world(checkpoint: Path, engine) -> None:
    """DeepSpeed would end in an error on some ranks, and in another one on others.

    Raises:
        RefusedError: the checkpoint is cut for another number of ranks than `engine` has.
    """
    file = min(checkpoint.glob("*mp_rank_00_model_states.pt"))
    saved = torch.load(file, map_location="cpu", mmap=True, weights_only=False)  # its tensors stay on the disk
    for what, name in (("data-parallel", "dp_world_size"), ("tensor-parallel", "mp_world_size")):
        before, now = saved[name], getattr(engine, name)
        if before != now:
            raise RefusedError(
                f"{what} ranks must be the {before} that saved {checkpoint}: got {now}; use {before}, another "
                "--ckpt.path, or DeepSpeed's converter (docs/reliability.md: another world by itself)"
            )


@contextmanager
def tied_weights_once(model: torch.nn.Module) -> Iterator[None]:
    """The state dict without what is tied to another weight: upstream clones it, so each would be written."""

    def drop(module: torch.nn.Module, state: dict, *_) -> None:
        for name, source in (getattr(module, "all_tied_weights_keys", None) or {}).items():
            if name in state and source in state and state[name].data_ptr() == state[source].data_ptr():
                del state[name]

    hook = model.register_state_dict_post_hook(drop)
    try:
        yield
    finally:
        hook.remove()


def restore_rotary_frequencies(model: torch.nn.Module) -> None:
    """Make the buffers of rotary embeddings anew where they are not float32."""
    for module in model.modules():
        rotary = "RotaryEmbedding" in type(module).__name__ and hasattr(module, "config")
        if rotary and any(b.is_floating_point() and b.dtype != torch.float32 for b in module.buffers()):
            for name, buffer in type(module)(module.config).named_buffers():
                setattr(module, name, buffer.to(getattr(module, name).device))
