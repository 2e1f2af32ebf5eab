"""Identity of a run in TensorBoard and W&B, kept beside its checkpoints so that a resumed run continues the curves.

`CKPT_PATH/tracking.json`: {"run_name": ..., "wandb_id": ..., "evaluated": the last evaluated step, "best": the
evaluations that were the best so far}. They are here because a step's checkpoint is older than its evaluation. If a
file cannot be read or written, this is logged, and the run goes on.
"""

import json
import os
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from openrlhf.utils.logging_utils import TensorboardLogger, WandbLogger, init_logger

from openrlhf_shear.config.secrets import hidden
from openrlhf_shear.data.writing import write_text

logger = init_logger(__name__)

BUSY = 0.05  # largest share of the time that failing retries may take
CLOSING_SECONDS = 120.0
_PROBE_BYTES = 65_536
_TIME_STAMP = re.compile(r"ppo_\d{4}T\d\d:\d\d")  # upstream's default run name
_NAMES = {"run_name", "wandb_id", "evaluated", "best"}


class Curves:
    """Tracker of OpenRLHF that survives errors: the first is logged, and later calls retry with a new tracker.

    `make` returns a tracker that continues the existing curves.
    """

    def __init__(self, name: str, make: Callable[[], object]):
        self._name, self._make = name, make
        self._tracker: object | None = None
        self._failed = False
        self._again = 0.0  # time of the next retry
        self._try("at the start", lambda tracker: None)

    def log_train(self, global_step: int, logs_dict: dict) -> None:
        self._try(f"at step {global_step}", lambda tracker: tracker.log_train(global_step, logs_dict))

    def log_eval(self, global_step: int, logs_dict: dict) -> None:
        self._try(f"at step {global_step}", lambda tracker: tracker.log_eval(global_step, logs_dict))

    def flush(self, global_step: int) -> None:
        """Flush TensorBoard's file to the disk."""
        if self._tracker is not None:
            self._try(f"at step {global_step}", lambda tracker: tracker.writer.flush())

    def renew(self) -> None:
        """Close the tracker and make a new one."""
        self.close()
        self._try("at the start", lambda tracker: None)

    def close(self) -> None:
        """Close the tracker; it gets two minutes to send the remaining data."""
        tracker, self._tracker = self._tracker, None
        if tracker is None:
            return
        failure: list[Exception] = []

        def close() -> None:
            try:
                tracker.close()
            except Exception as error:
                failure.append(error)

        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        closing.join(CLOSING_SECONDS)
        if closing.is_alive():
            self._fail(f"not closed after {CLOSING_SECONDS:g} s: the end of its curves may be missing")
        elif failure:
            self._fail(f"{_in_a_line(failure[0])}; the end of its curves may be missing")

    def _try(self, when: str, call: Callable[[object], object]) -> None:
        started = time.monotonic()
        if self._tracker is None and started < self._again:
            return
        try:
            if self._tracker is None:
                self._tracker = self._make()
            call(self._tracker)
        except Exception as error:  # of any kind: from three libraries and a network
            self._fail(f"{_in_a_line(error)} {when}; training goes on without its curves until that works again")
            self.close()
            now = time.monotonic()
            self._again = now + (now - started) * (1 / BUSY - 1)
            return
        if self._failed:
            logger.warning(f"{self._name} works again {when}; steps before are missing in its curves")
        self._failed = False

    def _fail(self, why: str) -> None:
        """Log a failure, once until the tracker works again."""
        if not self._failed:
            logger.error(f"{self._name} failed: {why}")
        self._failed = True


def check_room(folder: str) -> None:
    """Test the disk with a nameless file in `folder`, because a failing TensorBoard writer leaves an empty file behind.

    Raises:
        OSError: the disk is full or has no inodes, or the folder cannot be written to.
    """
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(bytes(_PROBE_BYTES))


def _in_a_line(error: Exception) -> str:
    """Format an exception in a line."""
    lines = hidden(str(error)).strip().splitlines()
    return f"{type(error).__name__}{f': {lines[0][:200]}' if lines else ''}"


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
