"""What a process tells of its run: every event goes through `emit`, to the driver (`relay`) or to stdout."""

import os
import sys
import time
import traceback
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from openrlhf_shear.train.screen import events
from openrlhf_shear.train.screen.events import Event
from openrlhf_shear.train.screen.outcome import RunEndedError

_EVERY_SECONDS = 1.0
_RECENT = 20  # steps whose mean duration gives the ETA


_diverted: Callable[[Event], None] | None = None


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


class Doing:
    """Reporter of the run's current activity, at most once a second."""

    def __init__(self):
        self._last = 0.0

    def __call__(self, words: str, done: int = 0, total: int = 0) -> None:
        now = time.monotonic()
        if not done or now - self._last >= _EVERY_SECONDS:
            self._last = now
            emit(events.Activity(words, done, total))


doing = Doing()


@contextmanager
def ending() -> Iterator[None]:
    """Tell how the block of an attempt ends, unless it ends well.

    Raises:
        SystemExit: the run ended on purpose; with its code (`outcome`).
    """
    try:
        yield
    except RunEndedError as error:
        emit(events.End(error.code, str(error)))
        raise SystemExit(error.code) from None
    except Exception as error:
        emit(events.Crash(cause_of(error)))
        raise


def cause_of(error: BaseException) -> str:
    """Return an error in a line.

    Ray's errors of tasks have the task's error; its other errors name their cause last, after lines about the actor.
    """
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause
    words = "".join(traceback.format_exception_only(error)).splitlines()
    return words[-1 if type(error).__module__.startswith("ray.") else 0].strip()


class Story:
    """Reporter of a run's steps, evaluations and end, in the trainer."""

    def __init__(self, args: Namespace, steps: int):
        """
        Args:
            args: OpenRLHF's nested namespace.
            steps: the number of steps of the whole run, as far as known.
        """
        self._args, self._steps = args, steps
        self._first: int | None = None
        self._updates = 0
        self._seconds: deque[float] = deque(maxlen=_RECENT)
        self._scores: dict[str, float | None] = {}  # of the last evaluation, by benchmark

    def step(self, step: int, status: Mapping[str, float], rule: str = "") -> None:
        """Tell of a step.

        Args:
            step: the step's number.
            status: the step's metrics by their full names.
            rule: the name of the credit rule, which is the prefix of its metrics.
        """
        self._first = step if self._first is None else self._first
        self._updates += int(status.get("update/optimizer_steps", 0))
        self._seconds.append(status["timing/step_total"])
        left = max(self._steps - step, 0) * sum(self._seconds) / len(self._seconds)
        values = {name: status.get(name.replace("RULE/", f"{rule}/")) for _, name, _ in events.OF_A_STEP}
        metrics = {name: float(value) for name, value in values.items() if value is not None}
        emit(events.Step(step, self._steps, metrics, self._seconds[-1], left))

    def evaluated(
        self, step: int, sets: Mapping[str, float], suite: Sequence[tuple[str, float | None, int]] = ()
    ) -> None:
        """Tell of an evaluation.

        Args:
            step: the step of the weights.
            sets: metrics of --eval.dataset.
            suite: name, score in [0, 1] and number of problems, of each benchmark of --eval.suite.
        """
        rows = []
        for name, score, problems in suite:
            before = self._scores.get(name)
            rows.append((name, score, None if score is None or before is None else score - before, problems))
        self._scores |= {name: score for name, score, _ in suite}
        if sets or rows:
            emit(events.ScoreTable(step, dict(sets), rows))

    def resumed(self, states: dict, prompts: int) -> None:
        """Tell where the run goes on: a checkpoint's states, and the number of prompts of an episode."""
        step = states["global_step"]
        if states["episode"] >= self._args.train.num_episodes:
            rest = f"its model goes to {self._args.ckpt.output_dir}; raise --train.num_episodes to continue"
            say(f"nothing left to train: the run finished at step {step}, and {rest}")
        else:
            emit(events.Resume(step, states["episode"] + 1, states["consumed"], prompts))

    def ended(self, states: dict, moved: bool, whole: bool, learned: str = "") -> None:
        """Tell of the end: the fate of the rollouts, the output folders, and how to go on.

        The driver names the model once it is saved (`launch`).

        Args:
            states: the checkpoint states after the last step.
            moved: whether any weight has changed.
            whole: whether the run is complete.
            learned: how many rollouts had an advantage (`run.advantages`), if that is known.
        """
        args, step = self._args, states["global_step"]
        summary = events.Summary(
            step=step,
            steps=self._steps,
            done=0 if self._first is None else step - self._first + 1,
            updates=self._updates,
            moved=moved,
            whole=whole,
            accounts=states.get("ledger"),
            learned=learned,
            checkpoints=args.ckpt.path if Path(args.ckpt.path, "_actor").is_dir() else "",
            curves=args.logger.tensorboard_dir or "",
            dumps=args.ckpt.path if args.dump_rollouts_every else "",
        )
        emit(summary)
        if whole:
            doing("saving the model")
