"""Files of the policy: its checkpoints, which are complete or absent, and its models."""

from pathlib import Path

import torch
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.train.carriers import RunState, Save
from openrlhf_shear.train.checkpoints import folders
from openrlhf_shear.train.checkpoints.folders import ACTOR, CRITIC
from openrlhf_shear.train.checkpoints.saveable import model_written

logger = init_logger(__name__)


class SavesPolicy:
    """Mixin for OpenRLHF's policy actor."""

    def save_model(self) -> None:
        """Save the trained model as upstream does. Raises ModelNotWrittenError: the disk refuses it."""
        self._fill_average()
        with model_written(self.strategy.args.ckpt):
            super().save_model()

    def save_checkpoint(self, what: Save, client_states: RunState, metric_value=None, metric_key=None) -> None:
        """Save the parts of a checkpoint, each complete or not at all, with the moving average of the weights.

        Raises NotSavedError: the disk refuses one of them. The model is saved first.
        """
        ckpt = self.strategy.args.ckpt
        if what.model:
            self._fill_average()
            self.strategy.save_hf(self.ema_model or self.actor, self.tokenizer, Path(ckpt.path, f"{what.tag}_hf"))
        if what.checkpoint:
            options = (ckpt.max_num, ckpt.max_mem, client_states, not what.best, metric_value, metric_key)
            self.strategy.save_ckpt(self.actor.model, self._folder(ACTOR), what.tag, *options, extra=self._save_average)
        torch.distributed.barrier()

    def discard_checkpoint(self, tag: str) -> None:
        """Delete what the parts of a checkpoint have written, of which the disk refused one."""
        for folder in (Path(self._folder(ACTOR)), Path(self._folder(CRITIC))):
            folders.discard(folder, tag)
        folders.discard(Path(self.strategy.args.ckpt.path), f"{tag}_hf")

    def prune_checkpoints(self, what: Save) -> None:
        """Delete old checkpoints by --ckpt.max_num and --ckpt.max_mem, once every model has saved `what`.

        If that is a best checkpoint, also delete the former best ones.
        """
        ckpt = self.strategy.args.ckpt
        both = [Path(self._folder(name)) for name in (ACTOR, CRITIC)]
        for folder in both:
            if not folder.is_dir():
                continue
            if what.best:
                folders.prune_best(folder, what.tag)
            for name in folders.prune(folder, ckpt.max_num, ckpt.max_mem):
                logger.info(f"checkpoint {folder / name} deleted")
        if what.best:
            folders.prune_best(Path(ckpt.path), what.tag)
        only = ckpt.max_num if ckpt.disable_ds else None
        folders.prune_hf(Path(ckpt.path), folders.names(both[0]), only)

    def _folder(self, model: str) -> str:
        return str(Path(self.strategy.args.ckpt.path, model))

    def _save_average(self, folder: Path) -> None:
        if self.ema_model:
            self.strategy.average.save(folder, self.strategy.time_steps["ema"])

    def _fill_average(self) -> None:
        """Give OpenRLHF's average model the average, as it is saved in place of the policy."""
        if self.ema_model:
            self.strategy.average.copy_to(self.ema_model.model.module)
