"""DeepSpeed strategy of OpenRLHF with complete optimizer steps, exact rotary frequencies and atomic checkpoints.

With dynamic batches DeepSpeed has to be told where optimizer steps end (docs/correctness.md#the-fault-that-this-found).

While a model loads under ZeRO-3, DeepSpeed makes `torch.arange` return the model's dtype. transformers 5 computes the
rotary frequencies with it. In bfloat16 they are off by up to 0.4%, which is several radians at position 3000.
"""

import json
import shutil
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from openrlhf.models import Actor
from openrlhf.utils.deepspeed import DeepspeedStrategy
from peft import PeftModel
from torch.optim.lr_scheduler import LambdaLR

from openrlhf_shear.data.writing import write_text
from openrlhf_shear.train.checkpoints import fingerprint, folders, saveable
from openrlhf_shear.train.checkpoints.folders import ACTOR, CRITIC, UNIVERSAL
from openrlhf_shear.train.checkpoints.resume import newest_whole
from openrlhf_shear.train.update import lora
from openrlhf_shear.train.update.arrival import Arrival
from openrlhf_shear.train.update.average import WeightAverage

_SETTINGS = ("initial_lr", "betas", "eps", "weight_decay")  # per parameter group


class ShearStrategy(DeepspeedStrategy):
    """DeepSpeed strategy that tells DeepSpeed where optimizer steps end, and saves and loads checkpoints safely.

    It restores rotary frequencies before DeepSpeed wraps a model. It writes a checkpoint under a temporary name, and
    renames it once complete.

    Attributes:
        loaded: the checkpoint that the last `load_ckpt` read; None for a fresh start.
        average: the moving average of the policy's weights (--train.enable_ema).
        arrival: the probe of the first optimizer step; None before there is a model, and after the check.
    """

    loaded: Path | None = None
    average: WeightAverage | None = None
    arrival: Arrival | None = None

    def prepare(self, *args):
        for arg in args:
            model = arg[0] if isinstance(arg, tuple) else arg
            if model is not None:
                restore_rotary_frequencies(model)
        prepared = super().prepare(*args)
        if self.stage == 0:
            for arg, made in zip(args, [prepared] if len(args) == 1 else prepared, strict=True):
                if isinstance(arg, tuple) and made[1] is not None:
                    forget_empty_step(made[1].optimizer)
        return prepared

    def begin_micro_batch(self, engine, ends_step: bool | None) -> None:
        """Tell DeepSpeed, before a micro-batch's forward pass, whether an optimizer step ends with it.

        Args:
            engine: DeepSpeed's engine.
            ends_step: None if DeepSpeed's counter knows (micro-batches of a fixed size).
        """
        if ends_step is not None:
            engine.set_gradient_accumulation_boundary(ends_step)
        if self.arrival is not None:
            self.arrival.begin_micro_batch()

    def optimizer_step(self, optimizer, model, scheduler, name="model", **kwargs) -> None:
        """Make an optimizer step as upstream does; upstream calls this after each micro-batch of a fixed size.

        A step whose gradient is not finite is skipped. Under ZeRO-3 DeepSpeed looks for that in float16 only.

        Raises:
            GradientLostError: the first optimizer step lacks the gradient of a micro-batch.
        """
        engine = model.model if isinstance(model, Actor) else model
        if engine.is_gradient_accumulation_boundary():
            if self.arrival is not None and self.arrival.check():
                self.arrival = None
            if self.stage == 3:
                engine.optimizer.check_overflow()
        super().optimizer_step(optimizer, model, scheduler, name=name, **kwargs)

    def moving_average(self, model, model_ema, beta=0.992, device="cpu") -> None:
        """Take the weights into `average`; upstream calls this after each micro-batch of a fixed size."""
        self.time_steps["ema"] += 1
        if self.time_steps["ema"] % self.accumulated_gradient == 0 or self.use_dynamic_batch:
            self.average.update(beta)

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
        """Save a complete checkpoint, or none (see `checkpoints`).

        Upstream deletes old checkpoints first, and names the new one before other ranks have written it. Here the
        trainer prunes old checkpoints once all models are saved.

        Args:
            extra: writes more files into the folder, on every rank.

        Raises:
            NotSavedError: on every rank, the disk refuses the folder or one of its files.
        """
        folder = Path(save_dir)
        aside = folder / f"{tag}{folders.PARTIAL}"
        with saveable.removed(aside):
            self._try(partial(_renew, aside), on=[0])
            if not aside.is_dir():
                raise RuntimeError(
                    f"rank {self.get_rank()} does not see {folder}: use a --ckpt.path that all nodes share"
                )
            self._try(partial(saveable.save, model, aside, client_state or {}, extra))

            def finished() -> list[list[Path]]:
                self._write_ckpt_metric(str(aside), metric_value, metric_key=metric_key)
                if fingerprint.STATE in (client_state or {}):
                    write_text(aside / fingerprint.FILE, json.dumps(client_state[fingerprint.STATE], indent=1))
                return folders.shares([aside], self.world_size)

            (shares,) = self._try(finished, on=[0])
            found = self._try(lambda: folders.digests(shares[self.get_rank()]))
            self._try(partial(folders.commit, folder, tag, ChainMap(*found), latest=save_latest), on=[0])

    def save_hf(self, model, tokenizer, folder: Path) -> None:
        """Save a complete model beside the checkpoints, or none. Raises NotSavedError as `save_ckpt`."""
        aside = folder.with_name(f"{folder.name}{folders.PARTIAL}")
        with saveable.removed(aside):
            self._try(partial(_renew, aside), on=[0])
            self._try(partial(self.save_model, model, tokenizer, str(aside)))
            self._try(partial(folders.replace, aside, folder), on=[0])

    def _try(self, part: Callable[[], object], on: Collection[int] | None = None) -> list:
        """Run a part of a save on all ranks, or on those of `on`, and return their results.

        Every rank calls this, and waits for the others.

        Raises:
            NotSavedError: the disk refuses the part on a rank.
        """
        result, problem = None, ""
        if on is None or self.get_rank() in on:
            try:
                result = part()
            except OSError as error:
                problem = f"{error}"
        results = self._gather((result, problem))
        if problems := [problem for _, problem in results if problem]:
            raise folders.NotSavedError(problems[0])
        return [result for rank, (result, _) in enumerate(results) if on is None or rank in on]

    def _gather(self, value: object) -> list:
        """Return the values of all ranks."""
        values = [None] * self.world_size
        torch.distributed.all_gather_object(values, value)
        return values

    def save_model(self, model, tokenizer, output_dir, **kwargs) -> None:
        """Save a model as upstream does, but with tied weights once, and with the file mode of config.json.

        For a model with LoRA upstream saves only the adapters, which only PEFT can load. Here they go into a subfolder,
        and the merged model into `output_dir`.

        Raises:
            OSError: on the first rank, the disk refuses a file. The other ranks do not wait for it.
        """
        policy, folder, problems = self._unwrap_model(model), Path(output_dir), []
        saveable.repair_generation(policy)
        if isinstance(policy, PeftModel):
            with saveable.noted(problems, folder):
                lora.save_merged(policy, output_dir, self.args.ds.zero_stage == 3)
                if self.is_rank_0():
                    tokenizer.save_pretrained(output_dir)
            folder = folder / lora.ADAPTER
        of_adapters = len(problems)
        with tied_weights_once(policy), saveable.noted(problems, Path(output_dir)):
            super().save_model(model, tokenizer, str(folder), **kwargs)
        if len(problems) > of_adapters:
            torch.distributed.barrier()  # upstream's last, at which the other ranks wait
        if problems:
            raise OSError(problems[0])
        if self.is_rank_0():
            mode = Path(output_dir, "config.json").stat().st_mode & 0o777
            for file in Path(output_dir).rglob("*.safetensors"):
                file.chmod(mode)  # the library keeps the mode of its temporary files: readable by the owner only

    def load_ckpt(self, model, load_dir, tag=None, **kwargs):
        """Load the newest checkpoint that is complete, for the critic too if there is one.

        Unlike upstream, it loads only from `load_dir`. The driver has compared layout and shapes (`fingerprint.check`).
        """
        if tag is None and self.use_ds_universal_ckpt:
            tag = folders.named_in(Path(load_dir), UNIVERSAL)
        elif tag is None:
            models = (ACTOR, CRITIC) if self.args.critic.model_name_or_path else (Path(load_dir).name,)
            both = [Path(load_dir).with_name(name) for name in models]
            tag = newest_whole(both, self.get_rank(), self.world_size, self._gather)
            if tag is None:
                return None, {}
        with rates_of_the_line(model):
            path, states = super().load_ckpt(model, load_dir, tag, **kwargs)
        self.loaded = path and Path(path).parent
        return path, states


def forget_empty_step(optimizer: torch.optim.Optimizer) -> None:
    """Set Adam's count of steps back to 0.

    Without ZeRO, DeepSpeed makes a step with a gradient of 0 when it is built. Adam's corrections for its zero moments
    count it, so that the first real step would have 0.735 of its size (at betas 0.9 and 0.95).
    """
    for group in optimizer.param_groups:
        if "step" in group:  # of the fused Adam
            group["step"] = 0
        for parameter in group["params"]:
            if "step" in (state := optimizer.state[parameter]):
                state["step"] = torch.zeros_like(state["step"]) if torch.is_tensor(state["step"]) else 0


def _renew(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


@contextmanager
def rates_of_the_line(engine) -> Iterator[None]:
    """Keep the command line's learning rate and Adam settings while a checkpoint loads.

    The place in the schedule is the checkpoint's. DeepSpeed and torch's schedules would restore the saved settings.
    """
    schedule = engine.lr_scheduler
    if not isinstance(schedule, LambdaLR):  # reduce_lr_on_plateau: its rate depends on its history
        yield
        return
    before = [{name: group[name] for name in _SETTINGS if name in group} for group in engine.optimizer.param_groups]
    rates = list(schedule.base_lrs)
    yield
    schedule.base_lrs = rates
    groups = engine.optimizer.param_groups  # loading replaced them
    for group, settings, rate, shape in zip(groups, before, rates, schedule.lr_lambdas, strict=True):
        group.update(settings, lr=rate * shape(schedule.last_epoch))


@contextmanager
def tied_weights_once(model: torch.nn.Module) -> Iterator[None]:
    """Drop tied duplicates from the model's state dict; upstream clones them, so each copy would be written."""

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
    """Recompute the buffers of rotary embeddings that are not float32."""
    for module in model.modules():
        rotary = "RotaryEmbedding" in type(module).__name__ and hasattr(module, "config")
        if rotary and any(b.is_floating_point() and b.dtype != torch.float32 for b in module.buffers()):
            for name, buffer in type(module)(module.config).named_buffers():
                setattr(module, name, buffer.to(getattr(module, name).device))
