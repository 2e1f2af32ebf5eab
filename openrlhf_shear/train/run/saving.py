"""Checkpoints of a run: `what_to_save` alone decides when one is saved and what of it; `Saver` has the actors write it.

Something must be trained first. Nothing but the best is saved of a step whose rewards or gradients failed.

- After a step: a multiple of `--ckpt.save_steps` was passed since the last checkpoint.
- After an evaluation: it is the best so far.
- A signal asked to stop: the last checkpoint has an earlier state.
- At the end: so it has, this attempt made a step, and `--ckpt.save_steps` is set.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Self

import ray
from openrlhf.trainer.ray.launcher import RayActorGroup

from openrlhf_shear.train.carriers import RunState, Save
from openrlhf_shear.train.checkpoints.folders import NotSavedError
from openrlhf_shear.train.screen.story import doing


class Moment(Enum):
    """Moment of a run at which a checkpoint may be saved."""

    STEP = auto()
    EVALUATION = auto()
    STOP = auto()
    END = auto()


@dataclass(frozen=True)
class Progress:
    """A run's progress, as far as it decides about a checkpoint."""

    step: int
    trained: bool  # whether anything was trained, in this attempt or before its checkpoint
    sound: bool  # whether the last step had enough rewards, and finite gradients
    last_saved: int = 0  # the step of the last checkpoint; 0 without one
    is_saved: bool = False  # whether that checkpoint has this very state
    made_steps: bool = True  # whether this attempt has made a step
    is_best: bool = False  # whether the evaluation is the best so far


def what_to_save(moment: Moment, now: Progress, ckpt: Namespace) -> Save | None:
    """Decide what to save by the flags `--ckpt.*`; None for nothing."""
    best, every = moment is Moment.EVALUATION, ckpt.save_steps
    wanted = {
        Moment.STEP: every > 0 and now.step // every > now.last_saved // every,
        Moment.EVALUATION: now.is_best,
        Moment.STOP: not now.is_saved,
        Moment.END: not now.is_saved and now.made_steps and every > 0,
    }[moment]
    if not (wanted and now.trained and (best or now.sound)):
        return None
    weights_only = best and ckpt.best_weights_only
    return Save(now.step, not (ckpt.disable_ds or weights_only), bool(ckpt.save_hf or weights_only), best)


@dataclass(frozen=True)
class Best:
    """Best evaluation of a run, by its metric: "" chooses the first `eval_..._pass1`, "none" chooses none."""

    key: str = ""
    value: float = float("-inf")
    latest: float | None = None  # of the last evaluation

    def after(self, metrics: Mapping[str, float]) -> Self:
        """Return the best evaluation after another one."""
        key = self.key or next((name for name in sorted(metrics) if name.endswith("_pass1")), "")
        if key not in metrics:
            return self
        return replace(self, key=key, value=max(self.value, metrics[key]), latest=metrics[key])

    def resumed(self, states: Mapping[str, object]) -> Self:
        """Return the better one of this and of a checkpoint's states; a key of the command line stays."""
        key, value = states.get("best_eval_metric_key"), states.get("best_eval_metric_value")
        latest = self.latest if value is None else states.get("latest_eval_metric_value", value)
        if self.key and key and key != self.key:
            return replace(self, latest=latest)
        return Best(self.key or key or "", max(self.value, float("-inf") if value is None else value), latest)

    def found(self) -> dict[str, object]:
        """Return the metric and its value, by upstream's names; {} before the first evaluation."""
        if self.value == float("-inf"):
            return {}
        return {"best_eval_metric_key": self.key, "best_eval_metric_value": self.value}

    def states(self) -> dict[str, object]:
        """Return the states of a checkpoint, by upstream's names."""
        names = ("best_eval_metric_key", "best_eval_metric_value", "latest_eval_metric_value")
        return dict(zip(names, (self.key, self.value, self.latest), strict=True))


class Saver:
    """Writer of checkpoints, on all actors of a run."""

    def __init__(
        self, actors: RayActorGroup, critics: RayActorGroup | None, check_folder: Callable[[], None] = lambda: None
    ):
        self._actors, self._critics = actors, critics
        self._check_folder = check_folder  # raises if --ckpt.path is another run's by now

    def save(self, what: Save, states: RunState, best: Best) -> str:
        """Save a checkpoint; return why the disk refuses it, or "".

        Args:
            states: what a resumed run needs beside weights and optimizer.
            best: the best evaluation, whose metric decides which checkpoint is pruned first.
        """
        self._check_folder()
        first = self._actors.actors[0]
        doing("saving a checkpoint")
        metric = {"metric_value": best.latest, "metric_key": best.key or None}
        refs = self._actors.async_run_method("save_checkpoint", what, states | best.states(), **metric)
        if self._critics is not None:
            refs += self._critics.async_run_method("save_checkpoint", what, **metric)
        try:
            ray.get(refs)
        except ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, NotSavedError):
                raise
            ray.wait(refs, num_returns=len(refs))  # the other parts
            ray.get(first.discard_checkpoint.remote(what.tag))
            return f"{error.cause}; make room for --ckpt.path"
        ray.get(first.prune_checkpoints.remote(what))
        return ""
