"""The loop of a training run, as a plain class; `trainer_actor.py` makes its parts and runs it in a Ray actor.

A step, in the order in which it happens:

1. The engines sample a batch, and its rewards are graded: `sampling/batches.py`, `sampling/samples.py`,
   `sampling/engine.py`, `sampling/grading.py`. Steps whose rewards failed are counted, and may end the run:
   `run/books.py`.
2. Whole groups go to the policy's ranks for log-probs: `experience/graded_experience.py`, by the plan of
   `experience/schedule.py`. In that pass `update/actor.py` captures what the credit rule needs.
3. The ranks weigh their groups (`credit/`), and share the work out: `experience/experience_maker.py`. Only weights
   travel back; rewards are shaped (`experience/shaping.py`) and become weighted advantages.
4. The ranks train, watched: `run/learner.py` calls upstream's step, `update/update.py` counts optimizer steps, and
   `update/strategy.py` tells DeepSpeed where they end.
5. The new weights go to the engines: `run/learner.py`, `update/actor.py`, `update/lora.py`.
6. Every rollout enters the accounts, with its reason if it was not trained on: `run/books.py`.
7. Metrics go to the screen and the curves: `screen/events.py`, `run/tracking.py`.
8. A checkpoint is saved if one is due: `run/saving.py` decides, `update/actor.py` and `checkpoints/` write it.
9. An evaluation runs if one is due, and may make the best checkpoint: `run/evaluation.py`.

It trains only on rollouts that were sampled and graded, and whose values are finite. A run that is killed at any moment
resumes exactly: `checkpoints/resume.py`, docs/reliability.md.
"""

import time
from argparse import Namespace
from dataclasses import replace

from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.train.carriers import RunState, Save
from openrlhf_shear.train.checkpoints import fingerprint
from openrlhf_shear.train.checkpoints.resume import FRESH, states_of
from openrlhf_shear.train.experience.graded_experience import NothingToTrainError
from openrlhf_shear.train.nodes.worker import lost_output
from openrlhf_shear.train.run.books import Advantages, Books
from openrlhf_shear.train.run.dump import RolloutDump
from openrlhf_shear.train.run.evaluation import Evaluation
from openrlhf_shear.train.run.learner import Learner
from openrlhf_shear.train.run.saving import Best, Moment, Progress, Saver, what_to_save
from openrlhf_shear.train.run.tracking import Tracking
from openrlhf_shear.train.sampling.batches import Batches
from openrlhf_shear.train.sampling.order import steps_from
from openrlhf_shear.train.sampling.rollout_rewards import is_failed, reward_of
from openrlhf_shear.train.screen.events import Checkpoint
from openrlhf_shear.train.screen.outcome import StoppedError
from openrlhf_shear.train.screen.story import Story, doing, emit

logger = init_logger(__name__)


class Stop:
    """Request to stop a run, which `check` carries out at the next safe point."""

    def __init__(self):
        self.why, self.step = "", 0  # the signal's name; the last step of the run so far

    def check(self) -> None:
        """Raise StoppedError if there is a request."""
        if self.why:
            raise StoppedError(f"stopped by {self.why} after step {self.step}")


class ShearTrainer:
    """Trainer of a run: accounts, exact resume, checkpoints and evaluations around the policy's steps."""

    def __init__(
        self,
        args: Namespace,
        policy: Learner,
        batches: Batches,
        saver: Saver,
        evaluation: Evaluation,
        tracking: Tracking,
        identity: fingerprint.Fingerprint,
        prompts: int,
        best_key: str = "",
        advantages: Advantages | None = None,
        dump: RolloutDump | None = None,
        stop: Stop | None = None,
    ):
        """
        Args:
            identity: the run's fingerprint, with its data.
            prompts: the number of prompts of an episode.
            advantages: counts rollouts with an advantage; None if more than the rewards of a group makes them.
            dump: writes rollouts with their credit; None without a credit rule.
            stop: the request to stop, which others share.
        """
        self._args, self._policy, self._maker = args, policy, policy.experience_maker
        self._batches, self.books = batches, Books(args, batches)
        self._saver, self._evaluation, self._tracking = saver, evaluation, tracking
        self._identity, self._prompts = identity, prompts
        self.best, self._advantages, self._dump = Best(best_key), advantages, dump
        self.stop = stop or Stop()
        self.story = Story(args, steps_from(args, prompts, 0, 0))
        self.states: RunState = dict(FRESH)  # after the last step

    # ── The run ──

    def fit(self) -> None:
        """Train to the end of the run, from the newest checkpoint if there is one.

        Raises:
            RunEndedError: the run was asked to stop, or cannot go on (see `outcome`).
        """
        self._resume()
        begun = step = self.states["global_step"]
        whole = False
        if step == 0 and self._evaluation.before_train:
            self._evaluate(0)
        try:
            started = time.time()
            while batch := self._batches.next():
                self.books.judge_rewards(batch)
                if not batch.samples:
                    continue
                waited = time.time() - started
                status, step = self.train_step(batch.samples, step)
                status["timing/step_total"] = waited + sum(v for k, v in status.items() if k.startswith("timing/"))
                status["timing/generation"] = batch.seconds
                if self._args.algo.dynamic_filtering_enable:
                    status["dynamic_filtering_pass_rate"] = batch.pass_rate
                self.states, self.stop.step = self.states_after(step), step
                self._log(step, status)
                self._save(Moment.STEP)
                if self._evaluation.is_due(step):
                    self._evaluate(step)
                started = time.time()
            self._save(Moment.END, begun)
            self.books.balance()
            if not begun:  # after a resume, the checkpoint has a trained model
                self.books.refuse_untrained(step)
            whole = True
        except StoppedError:
            self._save(Moment.STOP)
            raise
        finally:
            self._batches.close()
            self._finish_dump()
            self._tracking.close()
            learned = Advantages.shown(self.states.get("learned", (0, 0)))
            credit = self._maker.outcomes.shown() if self._maker.outcomes else ""
            self.story.ended(self.states, self.books.moved, whole, learned, credit)

    def _resume(self) -> None:
        """Restore a checkpoint if there is one. Raises RefusedError: as `states_of`."""
        saved = self._policy.checkpoint_states()
        if saved is None:
            if self._args.ckpt.load_enable:  # a run killed before its first checkpoint may have left metrics
                self._tracking.resume(0)
            return
        self.states = states = states_of(saved, self._identity, self._args, self._prompts)
        step = self.stop.step = self.books.saved = states["global_step"]
        if self._advantages:
            self._advantages.counts = states.get("learned", self._advantages.counts)
        self.best = self.best.resumed(saved)
        self._batches.restore(states)
        if self._args.algo.kl.target:  # else the flag sets the coefficient
            self._policy.kl_ctl.value = states.get("kl", self._policy.kl_ctl.value)
        left = steps_from(self._args, self._prompts, states["episode"], states["consumed"])
        self.story = Story(self._args, step + left)
        if later := self._tracking.resume(step):  # evaluations after the checkpoint was saved
            self.best = self.best.resumed(later | {"latest_eval_metric_value": self.best.latest})
        self._policy.broadcast_to_vllm()
        self.story.resumed(states, self._prompts)
        if self._evaluation.is_due(step) and self._tracking.evaluated < step:  # the checkpoint precedes the evaluation
            self._evaluate(step, go_on=True)

    def states_after(self, step: int) -> RunState:
        """Return a checkpoint's states beside weights and optimizer; (seed, place) determines everything else."""
        here = {"global_step": step, "kl": self._policy.kl_ctl.value, fingerprint.STATE: self._identity.topics}
        if self._advantages:
            here["learned"] = self._advantages.counts
        return self._batches.state() | here

    # ── A step ──

    def train_step(self, samples: list[Experience], step: int) -> tuple[dict, int]:
        """Train on rollouts with a reward and finite values; without such rollouts no weight changes.

        Returns:
            The step's metrics, and its number.
        """
        if self._advantages and (warning := self._advantages.note(list(map(reward_of, samples)))):
            logger.warning(f"step {step + 1}: {warning}")
        self._maker.training_step = step + 1
        self._maker.shows = self._dump is not None and self._dump.due(step + 1)
        has_rewards = not all(map(is_failed, samples))
        status = self._update(samples, step) if has_rewards else _no_update("no rollout has a reward")
        trained = self._policy.take_trained() if "update/skipped_steps" in status else None
        rewarded = {i for i, sample in enumerate(samples) if not is_failed(sample)}
        broken = {reason: len(rewarded.intersection(lost)) for reason, lost in self._maker.broken.items() if rewarded}
        moved = bool(status.pop("update/moved", False))
        return status | self.books.close(step + 1, len(rewarded), broken, trained, moved), step + 1

    def _update(self, samples: list[Experience], step: int) -> dict:
        self._policy.begin_update(step)
        doing("log-probs, credit and update")
        try:
            status, _ = self._policy.train_step(samples, step)
        except NothingToTrainError as error:
            status = _no_update(str(error))
        status |= self._maker.metrics()
        if self._maker.shown is not None:
            status |= self._dump.write(step + 1, self._maker.shown)
        return status

    def _finish_dump(self) -> None:
        """Wait for the dump: a resumed run does not write the files of steps before its checkpoint."""
        if self._dump is not None:
            self._dump.wait()

    def _log(self, step: int, status: dict) -> None:
        """Log a step's metrics: to the run's log, the curves and the screen."""
        shown = {name: value for name, value in status.items() if name != "generated_samples"}
        logger.info(f"✨ Global step {step}: {shown}")
        rule = self._maker.rule_name
        if f"{rule}/credit_seconds" in status:
            status[f"{rule}/credit_share"] = status[f"{rule}/credit_seconds"] / max(status["timing/step_total"], 1e-9)
        self._tracking.log(step, status)
        self.story.step(step, status, rule)
        if warning := lost_output():
            logger.warning(warning)

    # ── Evaluations and checkpoints ──

    def _evaluate(self, step: int, go_on: bool = False) -> None:
        """Evaluate a step's weights, and save the best checkpoint if it is the best so far.

        Args:
            go_on: continue an interrupted evaluation of the same weights.
        """
        scores = self._evaluation.run(step, self._batches.undisturbed(), go_on)
        self.story.evaluated(step, scores.sets, scores.suite)
        if step == 0:
            return
        now, before = self.best.after(scores.metrics), self.best
        if self.books.accounts.trained:
            # A checkpoint that the disk refused is not the best: a later evaluation above `before` is saved.
            saved = self._save(Moment.EVALUATION, best=now) if now.value > before.value else None
            self.best = now if saved else replace(now, value=before.value)
        self._tracking.note_evaluated(step, self.best.found())

    def _save(self, moment: Moment, begun: int = 0, best: Best | None = None) -> Save | None:
        """Save what `what_to_save` decides, with the current states; return what was saved.

        Args:
            begun: the step at which this attempt began.
            best: the evaluation that the checkpoint is of; None for the best so far.
        """
        self._finish_dump()
        last, step = self.states, self.states["global_step"]
        if moment is Moment.END:
            self.states = self.states_after(step)  # prompts that were filtered at the end belong to it
        same = step == self.books.saved and self.states["total_consumed_prompts"] == last["total_consumed_prompts"]
        is_best = best is not None
        what = what_to_save(
            moment,
            Progress(
                step,
                trained=self.books.accounts.trained > 0,
                sound=self.books.sound,
                last_saved=self.books.saved or 0,
                is_saved=same,
                made_steps=step > begun,
                is_best=is_best,
            ),
            self._args.ckpt,
        )
        if what is None:
            return None
        if problem := self._saver.save(what, self.states, best or self.best):
            logger.error(f"no {'best ' * is_best}checkpoint of step {step}: {problem}; {self.books.last_good}")
            return None
        if not is_best:
            self.books.saved = step
            emit(Checkpoint(step))
        return what


def _no_update(why: str) -> dict:
    logger.error(f"no update: {why}")
    return {"update/optimizer_steps": 0.0}
