"""What a process tells of its run: every event goes through `emit`, to the driver (`relay`) or to stdout."""

import os
import statistics
import sys
import time
import traceback
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from openrlhf_shear.config.secrets import quoted
from openrlhf_shear.train.screen import events
from openrlhf_shear.train.screen.events import Event
from openrlhf_shear.train.screen.outcome import RunEndedError

_EVERY_SECONDS = 1.0
_RECENT = 20  # steps whose median duration gives the ETA


_diverted: Callable[[Event], None] | None = None
_activity_at = 0.0  # time of the last activity


def divert(receive: Callable[[Event], None] | None) -> None:
    """Send this process's events to `receive` from now on; None for stdout."""
    global _diverted
    _diverted = receive


def emit(event: Event) -> None:
    """Send an event on its way to the screen."""
    (_diverted or put)(event)


def put(event: Event) -> None:
    """Print an event, as data where a console reads; if the disk is full or the reader is gone, drop it."""
    line = events.line_of(event) if events.READER in os.environ else event.printed()
    with suppress(OSError):
        sys.stdout.write(line)
        sys.stdout.flush()


def say(message: str) -> None:
    """Show a message for people."""
    emit(events.Note(message))


def doing(words: str, done: int = 0, total: int = 0) -> None:
    """Tell of the run's current activity, at most once a second."""
    global _activity_at
    now = time.monotonic()
    if not done or now - _activity_at >= _EVERY_SECONDS:
        _activity_at = now
        emit(events.Activity(words, done, total))


@contextmanager
def ending() -> Iterator[None]:
    """Tell how the block of an attempt ends, unless it ends well.

    Raises:
        SystemExit: the run ended on purpose; with its code (`outcome`).
    """
    try:
        yield
    except RunEndedError as error:
        emit(events.End(str(error), error.code))
        raise SystemExit(error.code) from None
    except Exception as error:
        emit(events.End(cause_of(error)))
        raise


def cause_of(error: BaseException) -> str:
    """Return an error in a line.

    Ray's errors of tasks have the task's error; its other errors name their cause last, after lines about the actor.
    """
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause
    words = "".join(traceback.format_exception_only(error)).splitlines()
    return quoted(words[-1 if type(error).__module__.startswith("ray.") else 0].strip())


class Story:
    """Reporter of a run's steps, evaluations and end, in the trainer."""

    def __init__(self, args: Namespace, steps: int):
        self._args, self._steps = args, steps  # of the whole run, as far as known
        self._first: int | None = None
        self._updates = 0
        self._seconds: deque[float] = deque(maxlen=_RECENT)
        self._scores: dict[str, float | None] = {}  # of the last evaluation, by benchmark

    def step(self, step: int, status: Mapping[str, float], rule: str = "") -> None:
        """Tell of a step, by its metrics; `rule` is the prefix of the credit rule's."""
        self._first = step if self._first is None else self._first
        self._updates += int(status.get("update/optimizer_steps", 0))
        seconds, left = status["timing/step_total"], None
        if step > self._first:  # the first step of an attempt compiles, and fills caches
            self._seconds.append(seconds)
            left = max(self._steps - step, 0) * statistics.median(self._seconds)
        values = {name: status.get(name.replace("RULE/", f"{rule}/")) for _, name, _ in events.OF_A_STEP}
        metrics = {name: float(value) for name, value in values.items() if value is not None}
        emit(events.Step(step, self._steps, metrics, seconds, left))

    def evaluated(
        self, step: int, sets: Mapping[str, float], suite: Sequence[tuple[str, float | None, int]] = ()
    ) -> None:
        """Tell of an evaluation.

        Args:
            step: the step of the weights.
            sets: metrics of --eval.dataset.
            suite: name, score in [0, 1] and number of problems, of each benchmark of --eval.suite.
        """
        title, lines = f"evaluation at step {step}", []
        if sets:
            lines.append(f"{title}: {', '.join(f'{name} {value:.3f}' for name, value in sets.items())}")
        if suite:
            width = max(len(title), *(len(name) for name, *_ in suite))
            lines.append(f"{title:{width}}  score %  change  problems")
        for name, score, problems in suite:
            before = self._scores.get(name)
            change = None if score is None or before is None else score - before
            lines.append(f"{name:{width}}  {_percent(score):>7}  {_percent(change, '+'):>6}  {problems:>8}")
        self._scores |= {name: score for name, score, _ in suite}
        if lines:
            say("\n".join(lines))

    def resumed(self, states: dict, prompts: int) -> None:
        """Tell where the run goes on: a checkpoint's states, and the number of prompts of an episode."""
        step = states["global_step"]
        if states["episode"] >= self._args.train.num_episodes:
            rest = f"its model goes to {self._args.ckpt.output_dir}; raise --train.num_episodes to continue"
            say(f"nothing left to train: the run finished at step {step}, and {rest}")
        else:
            emit(events.Checkpoint(step))
            place = f"episode {states['episode'] + 1}, {states['consumed']} of {prompts} prompts"
            say(f"resuming after step {step}: {place}")

    def ended(self, states: dict, moved: bool, whole: bool, learned: str = "", credit: str = "") -> None:
        """Tell of the end: the fate of the rollouts, the output folders, and how to go on.

        The driver names the model once it is saved (`launch`).

        Args:
            states: the checkpoint states after the last step.
            moved: whether any weight has changed.
            whole: whether the run is complete.
            learned: how many rollouts had an advantage (`books.Advantages`), if that is known.
            credit: why no group had correct and incorrect rollouts (`credit.groups.Outcomes`), if none had.
        """
        args, step = self._args, states["global_step"]
        done = 0 if self._first is None else step - self._first + 1
        unmoved = "" if moved or not done else ", which changed NO WEIGHT"
        lines = [
            f"{'finished' if whole else 'ended'} after step {step} of {self._steps}: {done} steps in this attempt with "
            f"{self._updates} optimizer steps{unmoved}"
        ]
        if accounts := states.get("ledger"):
            lost = {"filtered": accounts["filtered"], **accounts["failed"], "waiting": accounts["waiting"]}
            losses = ", ".join(f"{count} {reason}" for reason, count in lost.items() if count)
            trained = f"{accounts['trained']} trained of {accounts['dispatched']} sampled"
            lines.append(f"rollouts  {trained}{f' ({losses})' if losses else ''}")
        if learned:
            lines.append(f"learned   {learned}")
        if credit:
            lines.append(f"NO CREDIT {credit}")
        if Path(args.ckpt.path, "_actor").is_dir():
            lines.append(f"resume    the same line with --ckpt.load_enable, from {args.ckpt.path}")
        else:
            lines.append("resume    no checkpoint was made (--ckpt.save_steps N makes one every N steps)")
        if curves := args.logger.tensorboard_dir:
            lines.append(f"curves    tensorboard --logdir {curves}")
            lines.append(f"report    python -m openrlhf_shear.cli.report {curves} --output DIR")
        if args.dump_rollouts_every:
            lines.append(f"page      shear-rollouts {args.ckpt.path} --output rollouts.html")
        say("\n".join(lines))
        if whole:
            doing("saving the model")


def _percent(share: float | None, sign: str = "") -> str:
    return "-" if share is None else f"{100 * share:{sign}.1f}"
