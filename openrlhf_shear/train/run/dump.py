"""Dump of a step's rollouts with their credit, a file per step (`--credit.dump_rollouts_every`).

`python -m openrlhf_shear.cli.rollout_page` turns the file into a page.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.config.secrets import quoted
from openrlhf_shear.rollouts.columns import FirstError, StepRollouts, rollout_rows
from openrlhf_shear.rollouts.record import write_rollouts
from openrlhf_shear.tasks.arithmetic import arithmetic

logger = init_logger(__name__)


class RolloutDump:
    """Writer of `CKPT_PATH/rollouts/step000020.parquet` and the like."""

    def __init__(self, args, rule: str, tokenizer):
        self._every, self._folder = args.dump_rollouts_every, Path(args.ckpt.path) / "rollouts"
        self._rule, self._tokenizer, self._group_size = rule, tokenizer, args.rollout.n_samples_per_prompt
        self._thread, self._writing = ThreadPoolExecutor(1, "dump"), None
        spec, self._first_error = args.credit, first_error_of(args.reward.remote_url)
        self._settings = {
            **(spec.knobs() if spec.estimator == "shear" else {}),
            **{"rule": rule, "estimator": spec.estimator},
            **{"model": args.actor.model_name_or_path, "samples_per_prompt": self._group_size},
        }

    def due(self, step: int) -> bool:
        """Return whether to write this step (from 1): the first, when the policy is the base model, and every N-th."""
        return self._every > 0 and (step == 1 or step % self._every == 0)

    def write(self, step: int, rollouts: StepRollouts) -> dict[str, float]:
        """Write a step's rollouts in a thread; return `RULE/dump_seconds`, which the step waited for it.

        They include the seconds for the evidence. If the disk refuses the file, or a rule's evidence does not fit its
        rollouts, the run logs it and goes on.
        """
        started = time.perf_counter()
        self.wait()
        self._writing = self._thread.submit(self._write, step, rollouts)
        return {f"{self._rule}/dump_seconds": rollouts.evidence_seconds + time.perf_counter() - started}

    def wait(self) -> None:
        """Wait until the last step's file is written."""
        if self._writing is not None:
            self._writing.result()

    def _write(self, step: int, rollouts: StepRollouts) -> None:
        path = self._folder / f"step{step:06d}.parquet"
        try:
            rows = rollout_rows(rollouts, self._tokenizer, self._group_size, self._first_error)
            write_rollouts(path, rows, self._settings | {"step": step})
        except Exception as error:  # of any kind: the evidence is a user's
            why = quoted(f"{type(error).__name__}: {error}")
            logger.warning(f"the rollouts of step {step} could not be written to {path}: {why}; training goes on")
        else:
            logger.info(f"{len(rollouts.tokens)} rollouts of step {step} written to {path}")


def first_error_of(rewards: Sequence[str] | None) -> FirstError | None:
    """Return the finder of the first error in a response, which only the task of a reward file knows."""
    files = {Path(url).resolve() for url in rewards or []}
    return arithmetic.first_error if Path(arithmetic.__file__).resolve() in files else None
