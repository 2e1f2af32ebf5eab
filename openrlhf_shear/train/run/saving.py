"""Saving of a run's checkpoints, on all its actors."""

import ray
from openrlhf.trainer.ray.launcher import RayActorGroup
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.train.checkpoints.folders import NotSavedError
from openrlhf_shear.train.run.books import Books
from openrlhf_shear.train.screen.story import doing

logger = init_logger(__name__)


class Saver:
    """Writer of checkpoints. One that the disk refuses is logged, and tried again after the next step."""

    def __init__(self, actors: RayActorGroup, critics: RayActorGroup | None, books: Books):
        self._actors, self._critics, self._books = actors, critics, books
        self._is_due = False

    def note_due(self, is_due: bool) -> None:
        """Note whether a checkpoint is due; it stays due until one is saved."""
        self._is_due |= is_due

    def save_if_due(self, step: int, states: dict, best: dict) -> None:
        """Save a checkpoint that is due, unless the last rewards or gradients failed (`Books.worth_saving`)."""
        if self._is_due and self._books.worth_saving:
            self.save(step, states, best)

    def save(self, step: int, states: dict, best: dict) -> None:
        """Save a checkpoint; if the disk has no room, log it, and the next step tries again.

        Args:
            states: what a resumed run needs beside weights and optimizer.
            best: upstream's states of the best evaluation: `best_eval_metric_key`, its value, and the latest value.
        """
        self._is_due = True
        of_critic = ray.get(self._critics.actors[0].checkpoint_bytes.remote()) if self._critics is not None else 0
        problem = ray.get(self._actors.actors[0].disk_problem.remote(of_critic))
        if problem:
            last = f"make room for --ckpt.path; {self._books.last_good}"
            logger.error(f"no checkpoint of step {step}: {problem}; {last}")
            return
        metric = {"metric_value": best["latest_eval_metric_value"], "metric_key": best["best_eval_metric_key"] or None}
        tag = f"global_step{step}"
        doing("saving a checkpoint")
        refs = self._actors.async_run_method("save_checkpoint", tag, states | best, **metric)
        if self._critics is not None:
            refs += self._critics.async_run_method("save_checkpoint", tag, **metric)
        try:
            ray.get(refs)
        except ray.exceptions.RayTaskError as error:
            pass_over(error, f"step {step}")
            ray.wait(refs, num_returns=len(refs))  # the other parts
            ray.get(self._actors.actors[0].discard_checkpoint.remote(tag))
            return
        self.prune(tag)
        self._books.saved, self._is_due = step, False

    def prune(self, tag: str) -> None:
        """Remove the checkpoints that `tag` replaces."""
        ray.get(self._actors.actors[0].prune_checkpoints.remote(tag))


def pass_over(error: ray.exceptions.RayTaskError, step: str) -> None:
    """Log that the disk refused a checkpoint; raise any other error."""
    if not isinstance(error.cause, NotSavedError):
        raise error
    logger.error(f"no checkpoint of {step}: {error.cause}")
