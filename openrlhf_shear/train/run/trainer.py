"""PPO trainer of OpenRLHF with exact resume after a kill at any moment.

It trains only on rollouts that were sampled and graded, and whose values are finite.
"""

import math
import time

import ray
from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.data.files import DataError
from openrlhf_shear.evaluation.run_facts import write_run_facts
from openrlhf_shear.evaluation.suite import SUITE_AVERAGE
from openrlhf_shear.rewards.settings import RewardSettings
from openrlhf_shear.train.checkpoints import fingerprint, folders
from openrlhf_shear.train.checkpoints.resume import FRESH, states_of
from openrlhf_shear.train.experience.experience_maker import CreditExperienceMaker
from openrlhf_shear.train.experience.fillers import without_fillers
from openrlhf_shear.train.experience.graded_experience import NothingToTrainError, reward_stats
from openrlhf_shear.train.experience.making import make_experience_maker
from openrlhf_shear.train.nodes.worker import lost_output
from openrlhf_shear.train.run.advantages import Advantages, compares_rewards
from openrlhf_shear.train.run.books import Books
from openrlhf_shear.train.run.dump import RolloutDump
from openrlhf_shear.train.run.evaluation import scores_of
from openrlhf_shear.train.run.saving import Saver, pass_over
from openrlhf_shear.train.run.suite import TrainingSuite
from openrlhf_shear.train.run.tracking import Tracking, passed_over
from openrlhf_shear.train.sampling.batches import Batches, BatchesAhead
from openrlhf_shear.train.sampling.engine import checked_pools
from openrlhf_shear.train.sampling.engines import Engines
from openrlhf_shear.train.sampling.gap_watch import GapWatch
from openrlhf_shear.train.sampling.order import PromptOrder, optimizer_steps, seed_of, steps_from
from openrlhf_shear.train.sampling.prompt_data import own_rows
from openrlhf_shear.train.sampling.samples import ShearSamplesGenerator, is_failed, reward_of
from openrlhf_shear.train.screen import relay
from openrlhf_shear.train.screen.outcome import GradientLostError, NotFiniteError, RefusedError, StoppedError
from openrlhf_shear.train.screen.story import Story, doing
from openrlhf_shear.train.upstream import plain_class

logger = init_logger(__name__)
_BEST = ("best_eval_metric_key", "best_eval_metric_value")
_NO_PROMPTS = ("no --eval.dataset, a suite only",)  # upstream evaluates if there is an evaluation data loader


class ShearTrainer(plain_class(PPOTrainer)):
    """Trainer with credit rules, accounts, exact resume and benchmarks (`docs/reliability.md`).

    With `args.credit` None it is upstream's trainer plus the promises of `docs/reliability.md`, the accounts,
    `--eval.before_train` and `--eval.suite`. With `--train.async_enable` batches are made while it trains.
    """

    reward: RewardSettings | None = None  # None if rewards come from a model
    _advantages: Advantages | None = None  # None if more than the rewards of a group makes advantages

    def __init__(self, pretrain, strategy, *args, **kwargs):
        self._refused = ""  # reason of a refusal, raised in `get_max_steps`: an error here kills the actor
        try:
            self._lock = folders.lock_own(strategy.args.ckpt)  # first: before anything is written
            self._tracking = Tracking(strategy.args)
            with own_rows(), self._tracking.surviving():
                super().__init__(pretrain, strategy, *args, **kwargs)
        except (folders.NotOursError, DataError) as error:
            self._refused = str(error)
            return
        self._fingerprint = self.args.fingerprint.with_data(self.prompts_dataloader.dataset.fingerprint)
        loaders = self.prompts_dataloader, self.eval_dataloader
        with passed_over("run.json"):
            write_run_facts(self.args, *(loader and loader.dataset.digest for loader in loaders))
        ahead = self.args.train.async_enable
        self._engines = Engines(self.vllm_engines, None if ahead else self._send_weights)
        self._suite = None
        if self.args.eval.suite:
            self._suite = TrainingSuite(self.args, self._engines, self.tokenizer, self._check_stop)
            self.best_eval_metric_key = self.best_eval_metric_key or SUITE_AVERAGE
            self.eval_dataloader = self.eval_dataloader or _NO_PROMPTS
        self._pools: list[ray.actor.ActorHandle] = []
        problems = self.prompts_dataloader.dataset.problems
        self.experience_maker, self._prm_loads = make_experience_maker(self.experience_maker, problems)
        self._weighs = isinstance(self.experience_maker, CreditExperienceMaker)
        if self._weighs:
            self._dump = RolloutDump(self.args, self.experience_maker.rule.name, self.tokenizer)
        own = self._weighs and getattr(self.experience_maker.rule, "makes_advantages", False)
        if self.reward and not own and compares_rewards(self.args):
            self._advantages = Advantages(self.args.rollout.n_samples_per_prompt)
        self._order_prompts()
        self.samples_generator = ShearSamplesGenerator(
            self.strategy, self.prompts_dataloader, self.eval_dataloader, self.tokenizer, self._engines, self._order
        )
        self.samples_generator.check_stop = self._check_stop
        self._gap_watch = GapWatch(self.args, self._engines)
        self.samples_generator.sampled = self._gap_watch.sampled
        self.experience_maker.judge_gap = self._gap_watch.judge
        self._stop_asked = ""
        made = (self.samples_generator, self.args.train.num_episodes, self.generate_kwargs)
        self._batches = BatchesAhead(*made, room=self.args.train.async_queue_size) if ahead else Batches(*made)
        self._books = Books(self.args, self._batches)
        self._saver = Saver(self.actor_model_group, self.critic_model_group, self._books)

    def _order_prompts(self) -> None:
        dataset = self.prompts_dataloader.dataset
        self._order = PromptOrder(len(dataset), self.args.train.seed)
        self.prompts_dataloader = self.strategy.setup_dataloader(
            dataset,
            1,
            pin_memory=True,
            shuffle=False,
            collate_fn=dataset.collate_fn,
            sampler=self._order,
            num_workers=self.args.data.dataloader_num_workers,
        )
        self._story = Story(self.args, steps_from(self.args, len(dataset), 0, 0))
        self.max_steps = optimizer_steps(self.args, len(dataset))

    def get_max_steps(self) -> int:
        """Return the number of optimizer steps, after checks: upstream calls this before it loads the models.

        Raises:
            RefusedError: a data set cannot be used, the folder is another run's, the policy would never learn, or
                a node cannot grade.
        """
        if self._refused:
            raise RefusedError(self._refused)
        frozen = self.args.critic.freezing_steps
        steps = steps_from(self.args, len(self.prompts_dataloader.dataset), 0, 0)
        if self.critic_model_group is not None and frozen >= steps:
            why = f"--critic.freezing_steps {frozen}: the policy would learn in none of the run's {steps} steps"
            raise RefusedError(f"{why}; use fewer, or -1")
        if self.reward and not self.reward.is_served:
            self._pools = checked_pools(self.reward)
        doing("loading the models")
        return self.max_steps

    # ── The run ──

    @ray.method(concurrency_group="control")
    def ask_to_stop(self, why: str) -> None:
        """Ask `fit` to stop at the next safe point, with a checkpoint."""
        self._stop_asked = why

    @ray.method(concurrency_group="output")
    def printed(self, seen: int, patience: float) -> tuple[int, list[str]]:
        """Return this process's output for the driver to print (`relay.fetch`), while `fit` runs."""
        return relay.fetch(seen, patience)

    def fit(self, global_step: int = 0) -> None:
        """Run upstream's training loop, from the newest checkpoint if there is one.

        Raises:
            RunEndedError: the run was asked to stop, or cannot go on (see `outcome`).
        """
        ray.get(self._prm_loads)
        states = self._resume()
        step, whole = states["global_step"], False
        if step == 0 and self.args.eval.before_train and self.eval_dataloader:
            self._evaluate_and_keep_best(0, None)
        try:
            started = time.time()
            while batch := self._batches.next():
                self._books.judge_rewards(batch)
                if not batch.samples:
                    continue
                waited = time.time() - started
                status, step = self.train_step(batch.samples, step)
                status["timing/step_total"] = waited + sum(v for k, v in status.items() if k.startswith("timing/"))
                status["timing/generation"] = batch.seconds
                if self.args.algo.dynamic_filtering_enable:
                    status["dynamic_filtering_pass_rate"] = batch.pass_rate
                shown = {name: value for name, value in status.items() if name != "generated_samples"}
                logger.info(f"✨ Global step {step}: {shown}")
                self._states = self._states_after(step)
                self.save_logs_and_checkpoints(step, status, self._states)
                if step % self.args.eval.steps == 0 and self.eval_dataloader:
                    self._evaluate_and_keep_best(step, self._states)
                started = time.time()
            if step > states["global_step"] and self.args.ckpt.save_steps != float("inf"):
                self._save_unless_kept(self._states_after(step))
            self._books.balance()
            if not states["global_step"]:  # after a resume, the checkpoint has a trained model
                self._books.refuse_untrained(step)
            whole = True
        except StoppedError:
            self._save_unless_kept(self._states)
            raise
        finally:
            self._batches.close()
            self._tracking.close(self)
            learned = self._advantages.shown() if self._advantages else ""
            self._story.ended(self._states, self._books.moved, whole, learned)
        if step > states["global_step"]:
            self._books.tell_unmoved()

    def _resume(self) -> dict:
        """Restore a checkpoint if there is one; return its states, or those of a fresh start.

        Raises RefusedError: as `states_of`.
        """
        kept = ray.get(self.actor_model_group.async_run_method("get_checkpoint_states"))[0] or {}
        if not kept:
            self._states = dict(FRESH)
            if self.args.ckpt.load_enable:  # a run killed before its first checkpoint may have left metrics
                self._tracking.resume(self, 0)
            return self._states
        self._states = states = states_of(kept, self._fingerprint, self.args, len(self._order))
        step = states["global_step"]
        self.restore_best_checkpoint_state(kept)
        self._batches.restore(states)
        if self.args.algo.kl.target:  # else the flag sets the coefficient
            self.kl_ctl.value = states.get("kl", self.kl_ctl.value)
        self._story = Story(
            self.args, step + steps_from(self.args, len(self._order), states["episode"], states["consumed"])
        )
        self._books.saved = step
        if best := self._tracking.resume(self, step):  # of evaluations after the checkpoint was saved
            self.restore_best_checkpoint_state(best | {"latest_eval_metric_value": self._latest_eval_metric_value})
        self.broadcast_to_vllm()
        self._story.resumed(states, len(self._order))
        due = self.eval_dataloader and step > 0 and step % self.args.eval.steps == 0
        if due and self._tracking.evaluated < step:  # the checkpoint precedes the evaluation
            self._evaluate_and_keep_best(step, states, go_on=True)
        return states

    def _states_after(self, step: int) -> dict:
        """Return a checkpoint's states beside weights and optimizer; (seed, place) determines everything else."""
        here = {"global_step": step, "kl": self.kl_ctl.value, fingerprint.STATE: self._fingerprint.topics}
        return self._batches.state() | here

    def _check_stop(self) -> None:
        if self._stop_asked:
            raise StoppedError(f"stopped by {self._stop_asked} after step {self._states['global_step']}")

    def restore_best_checkpoint_state(self, checkpoint_states) -> None:
        """Restore the best evaluation as upstream does, but keep a better one since, and the line's metric."""
        best, asked = self.best_eval_metric_value, self.best_eval_metric_key
        super().restore_best_checkpoint_state(checkpoint_states)
        if asked and self.best_eval_metric_key != asked:
            self.best_eval_metric_key, self.best_eval_metric_value = asked, best
        self.best_eval_metric_value = max(best, self.best_eval_metric_value)

    # ── A step ──

    def train_step(self, rollout_samples, global_step: int):
        """Run upstream's step on rollouts with a reward and finite values; without such rollouts no weight changes."""
        if self._advantages and (told := self._advantages.note(list(map(reward_of, rollout_samples)))):
            logger.warning(f"step {global_step + 1}: {told}")
        dumps = self._weighs and self._dump.due(global_step + 1)
        if self._weighs:
            self.experience_maker.shows = dumps
            self.experience_maker.training_step = global_step + 1
        if all(map(is_failed, rollout_samples)):
            status, global_step = self._no_update("no rollout has a reward"), global_step + 1
        else:
            self._seed_updates(global_step)
            doing("log-probs, credit and update")
            try:
                status, global_step = super().train_step(rollout_samples, global_step)
            except NothingToTrainError as error:
                status, global_step = self._no_update(str(error)), global_step + 1
            if self.experience_maker.gap is not None:
                status.update(self.experience_maker.gap.metrics())
            if self._weighs:
                status.update(self.experience_maker.credit_metrics)
            if dumps and self.experience_maker.made is not None:
                status.update(self._dump.write(global_step, self.experience_maker.made))
        status.update(self._close_books(rollout_samples, status, global_step))
        return status, global_step

    def ppo_train(self, global_steps: int) -> dict:
        try:
            return super().ppo_train(global_steps)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, NotFiniteError | GradientLostError):
                why = f"step {global_steps + 1}: {error.cause}; the last checkpoint stands"
                raise type(error.cause)(why) from None
            raise

    def _seed_updates(self, step: int) -> None:
        for group in filter(None, (self.actor_model_group, self.critic_model_group)):
            ray.get(group.async_run_method("begin_update", seed_of(self.args.train.seed, "update", step)))

    def _no_update(self, why: str) -> dict:
        logger.error(f"no update: {why}")
        return {"update/optimizer_steps": 0.0}

    def _close_books(self, rollout_samples, status: dict, step: int) -> dict[str, float]:
        trained = None
        if "update/skipped_steps" in status:
            args = self.args.ds
            copies = args.ring_attn_size * args.tensor_parallel_size
            trained = sum(ray.get(self.actor_model_group.async_run_method("take_trained"))) // copies
        rated = {i for i, sample in enumerate(rollout_samples) if not is_failed(sample)}
        noted = self.experience_maker.broken if rated else {}
        broken = {reason: len(rated.intersection(rollouts)) for reason, rollouts in noted.items()}
        return self._books.close(step, len(rated), broken, trained, bool(status.pop("update/moved", False)))

    def _compute_rollout_stats(self, experiences) -> dict:
        """Compute upstream's statistics without fillers; the rewards' mean and deviation leave out failed rewards."""
        experiences = without_fillers(experiences)
        return super()._compute_rollout_stats(experiences) | reward_stats(experiences)

    # ── Weights to the engines ──

    def broadcast_to_vllm(self) -> None:
        """Send the weights to the engines as upstream does; restart dead engines.

        This happens between two batches; with --train.partial_rollout_enable, also during a batch.
        """
        if self.args.vllm.enable_sleep:
            self._engines.call("wake_up", tags=["weights"])
        partial = self.args.train.partial_rollout_enable
        with self._engines.paused() if partial else self._batches.undisturbed():
            self._engines.persist("weights", self._send_weights)

    def _send_weights(self) -> None:
        ray.get(self.actor_model_group.async_run_method("broadcast_to_vllm"))

    # ── Evaluation ──

    def _evaluate_and_keep_best(self, step: int, states: dict | None, go_on: bool = False) -> None:
        """Evaluate, and save a checkpoint if it is the best so far.

        Args:
            step: the step of the weights.
            states: the checkpoint states; None before training, when nothing is saved.
            go_on: continue an interrupted evaluation of the same weights.
        """
        asked = {name: getattr(self.args.eval, name) for name in ("temperature", "n_samples_per_prompt")}
        with self._batches.undisturbed():
            metrics = self.evaluate(step, go_on=go_on, **self.generate_kwargs | asked)
        if states is not None:
            self.save_best_checkpoint(metrics, step, dict(states))
            best = {name: getattr(self, name) for name in _BEST}
            self._tracking.note_evaluated(step, best if math.isfinite(self.best_eval_metric_value) else {})

    def evaluate(self, global_step, go_on: bool = False, **generate_kwargs):
        if self.eval_dataloader is _NO_PROMPTS:
            return self._evaluate_suite(global_step, go_on)
        doing("evaluating")
        samples = self.samples_generator.generate_eval_samples(global_step, **generate_kwargs)
        sources = [source for of_batch, *_ in self.eval_dataloader for source in of_batch]
        logs = self._tracking.log_eval(
            self, global_step, scores_of(samples, sources, generate_kwargs["n_samples_per_prompt"])
        )
        if self._suite is not None:
            logs |= self._evaluate_suite(global_step, go_on)
        if failed := self.samples_generator.eval_failed:
            logger.warning(f"evaluation at step {global_step}: {failed} rewards failed; these rollouts have no score")
        self._story.evaluated(global_step, logs)
        return logs

    def _evaluate_suite(self, global_step: int, go_on: bool) -> dict[str, float]:
        with passed_over(f"the evaluation of step {global_step}"):
            return self._tracking.log_eval(self, global_step, self._suite.evaluate(global_step, go_on))
        return {}

    # ── Checkpoints ──

    def save_best_checkpoint(self, eval_metrics, global_step, client_states=None) -> None:
        """Save the best checkpoint as upstream does, but only once something was trained.

        A resumed run takes the model of its checkpoint for a trained one.
        """
        if not self._books.accounts.trained:
            return
        before = self.best_eval_metric_value
        try:
            super().save_best_checkpoint(eval_metrics, global_step, client_states)
        except ray.exceptions.RayTaskError as error:
            pass_over(error, f"the best checkpoint, of step {global_step}")
            self.best_eval_metric_value = before  # so that a later evaluation above it is saved
            return
        if self.best_eval_metric_value > before:
            self._saver.prune(f"best_global_step{global_step}")

    def save_logs_and_checkpoints(self, global_step: int, logs_dict=None, client_states=None) -> None:
        """Log and save as upstream does, but save no checkpoint of a step whose rewards or gradients failed."""
        logs = dict(logs_dict or {})
        rule = self.experience_maker.rule.name if self._weighs else ""
        if self._weighs and f"{rule}/credit_seconds" in logs:
            logs[f"{rule}/credit_share"] = logs[f"{rule}/credit_seconds"] / max(logs["timing/step_total"], 1e-9)
        self._tracking.log(self, global_step, logs)
        self._story.step(global_step, logs, rule)
        if told := lost_output():
            logger.warning(told)
        self._saver.note_due(global_step % self.args.ckpt.save_steps == 0)
        self._saver.save_if_due(global_step, client_states, self._best())

    def _save_unless_kept(self, states: dict) -> None:
        """Save the final states, unless a checkpoint already has them."""
        step = states["global_step"]
        kept = step == self._books.saved and states["total_consumed_prompts"] == self._states["total_consumed_prompts"]
        if step and not kept and self._books.worth_saving:
            self._saver.save(step, states, self._best())

    def _best(self) -> dict:
        """Return the states of the best evaluation, as upstream names them in a checkpoint."""
        best = {name: getattr(self, name) for name in _BEST}
        return best | {"latest_eval_metric_value": self._latest_eval_metric_value}
