"""What a run keeps about itself beside its checkpoints: a resumed one goes on in the same TensorBoard and W&B run.

`CKPT_PATH/tracking.json`: {"run_name": ..., "wandb_id": ..., "evaluated": the last step that was}.
"""

import json
import os
import re
import uuid
from pathlib import Path

_TIME_STAMP = re.compile(r"ppo_\d{4}T\d\d:\d\d")  # upstream's default name of a run


class Tracking:
    """Made before upstream's loggers: it decides the name, and the id, that they start with."""

    def __init__(self, args):
        self._file = Path(args.ckpt.path) / "tracking.json"
        kept = json.loads(self._file.read_text()) if args.ckpt.load_enable and self._file.is_file() else {}
        names = args.logger.wandb
        if "run_name" in kept and _TIME_STAMP.fullmatch(names.run_name):
            names.run_name = kept["run_name"]
        self._kept = {"wandb_id": uuid.uuid4().hex[:12], "evaluated": -1} | kept | {"run_name": names.run_name}
        os.environ.setdefault("WANDB_RUN_ID", self._kept["wandb_id"])
        os.environ.setdefault("WANDB_RESUME", "allow")
        self._write()

    @property
    def evaluated(self) -> int:
        """The last step whose evaluation ended."""
        return self._kept["evaluated"]

    def note_evaluated(self, step: int) -> None:
        self._kept["evaluated"] = step
        self._write()

    def resume(self, trainer, step: int) -> None:
        """Go on behind `step`: what TensorBoard has of later steps, of the run that was killed, it hides."""
        from torch.utils.tensorboard import SummaryWriter

        self._kept["evaluated"] = min(self.evaluated, step)
        board = trainer.tensorboard_logger
        if board:
            folder = board.writer.log_dir
            board.writer.close()
            board.writer = SummaryWriter(log_dir=folder, purge_step=step + 1 if step else 0)

    def log(self, trainer, step: int, values: dict) -> None:
        """A training step's, every --logger.logging_steps steps, and at once on the disk."""
        if step % trainer.args.logger.logging_steps == 0:
            for tracker in filter(None, (trainer.wandb_logger, trainer.tensorboard_logger)):
                tracker.log_train(step, values)
        if trainer.tensorboard_logger:
            trainer.tensorboard_logger.writer.flush()

    def close(self, trainer) -> None:
        for tracker in filter(None, (trainer.wandb_logger, trainer.tensorboard_logger)):
            tracker.close()

    def _write(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        aside = self._file.with_suffix(".partial")
        aside.write_text(json.dumps(self._kept, indent=1) + "\n")
        aside.replace(self._file)
