"""Identity of a run in TensorBoard and W&B, kept beside its checkpoints so that a resumed run continues the curves.

`CKPT_PATH/tracking.json`: {"run_name": ..., "wandb_id": ..., "evaluated": the last evaluated step, "best": the
evaluations that were the best so far}. They are here because a step's checkpoint is older than its evaluation. If a
file cannot be read or written, this is logged, and the run goes on.
"""

import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from openrlhf.utils.logging_utils import TensorboardLogger, WandbLogger, init_logger

from openrlhf_shear.data.writing import write_text
from openrlhf_shear.train.run.curves import Curves, check_room

logger = init_logger(__name__)
_TIME_STAMP = re.compile(r"ppo_\d{4}T\d\d:\d\d")  # upstream's default run name
_NAMES = {"run_name", "wandb_id", "evaluated", "best"}


class Tracking:
    """Keeper of a run's name, W&B id and curves; `start` starts the loggers, after the name is known."""

    def __init__(self, args):
        self._args, self._wandb, self._board = args, None, None
        self._file = Path(args.ckpt.path) / "tracking.json"
        self._unwritten = False
        self._purge: int | None = None  # the first logged step that TensorBoard hides
        notes = self._read() if args.ckpt.load_enable else {}
        names = args.logger.wandb
        if "run_name" in notes and _TIME_STAMP.fullmatch(names.run_name):
            names.run_name = notes["run_name"]
        new = {"wandb_id": uuid.uuid4().hex[:12], "evaluated": -1, "best": []}
        self._notes = new | notes | {"run_name": names.run_name}
        os.environ.setdefault("WANDB_RUN_ID", self._notes["wandb_id"])
        os.environ.setdefault("WANDB_RESUME", "allow")
        self._write()

    def start(self) -> None:
        """Start OpenRLHF's loggers, as far as the flags name them."""
        if self._args.logger.wandb.key:
            self._wandb = Curves("W&B", lambda: WandbLogger(self._args))
        if self._args.logger.tensorboard_dir:
            self._board = Curves("TensorBoard", self._make_board)

    def _make_board(self) -> TensorboardLogger:
        logger = self._args.logger
        folder = os.path.join(logger.tensorboard_dir, logger.wandb.run_name)
        check_room(folder)
        board, self._purge = _Board(folder, self._purge), None
        return board

    @property
    def _curves(self) -> list[Curves]:
        return [curves for curves in (self._wandb, self._board) if curves is not None]

    @property
    def evaluated(self) -> int:
        """Last step whose evaluation ended."""
        return self._notes["evaluated"]

    def note_evaluated(self, step: int, best: Mapping[str, object]) -> None:
        """Keep the step, and the best evaluation so far: its `best_eval_metric_key` and `best_eval_metric_value`."""
        self._notes["evaluated"] = step
        if best and best != {name: value for name, value in self._best().items() if name != "step"}:
            self._notes["best"].append({"step": step, **best})
        self._write()

    def _best(self) -> dict[str, object]:
        return self._notes["best"][-1] if self._notes["best"] else {}

    def resume(self, step: int) -> dict[str, object]:
        """Continue the curves after `step`; TensorBoard hides the killed run's later steps.

        Returns:
            The best evaluation up to this step, as of `note_evaluated`; {} without one.
        """
        self._notes["evaluated"] = min(self.evaluated, step)
        self._notes["best"] = [best for best in self._notes["best"] if best["step"] <= step]
        self._write()
        if self._board:
            self._purge = step + 1 if step else 0
            self._board.renew()
        return self._best()

    def log(self, step: int, values: dict) -> None:
        """Log a training step's metrics every --logger.logging_steps steps, and flush them to the disk."""
        if step % self._args.logger.logging_steps == 0:
            for curves in self._curves:
                curves.log_train(step, values)
        if self._board:
            self._board.flush(step)

    def log_eval(self, step: int, metrics: dict[str, float]) -> None:
        """Log an evaluation's metrics."""
        for curves in self._curves:
            curves.log_eval(step, metrics)

    def close(self) -> None:
        for curves in self._curves:
            curves.close()

    def _read(self) -> dict:
        try:
            notes = json.loads(self._file.read_text(encoding="utf-8"))
            if {*notes} == _NAMES:
                return notes
            why = f"it must have {', '.join(sorted(_NAMES))}"
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            why = str(error)
        logger.warning(f"{self._file} cannot be used: {why}; curves may begin anew, training goes on")
        return {}

    def _write(self) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._file, json.dumps(self._notes, indent=1) + "\n")
        except OSError as error:
            if not self._unwritten:
                logger.error(f"{self._file} cannot be written: {error}; training goes on, a resume may begin anew")
            self._unwritten = True
        else:
            self._unwritten = False


class _Board(TensorboardLogger):
    """OpenRLHF's TensorBoard logger, which can hide the steps that a resumed run repeats."""

    def __init__(self, folder: str, purge: int | None):
        from torch.utils.tensorboard import SummaryWriter  # late: it takes a second

        self.writer = SummaryWriter(log_dir=folder, purge_step=purge)


@contextmanager
def passed_over(what: str) -> Iterator[None]:
    """Log a disk error of the block, and go on without the block's result."""
    try:
        yield
    except OSError as error:
        logger.error(f"{what} could not be written: {error}; training goes on")
