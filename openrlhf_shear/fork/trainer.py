"""The PPO trainer: OpenRLHF's, with the fork's experience maker, its metrics, and an evaluation before training."""

from __future__ import annotations

from pathlib import Path

import ray
import torch
from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.config import PrmConfig
from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.credit.rule import CreditRule
from openrlhf_shear.evaluation.run_facts import write_run_facts
from openrlhf_shear.evaluation.suite import SUITE_AVERAGE
from openrlhf_shear.fork.experience_maker import CreditExperienceMaker
from openrlhf_shear.fork.graded_experience import GradedExperienceMaker
from openrlhf_shear.fork.prm import PrmActor, PrmGroup, StepScorer, recorded_problems
from openrlhf_shear.fork.rollout_dump import RolloutDump
from openrlhf_shear.fork.samples import FAILED, LedgerSamplesGenerator, is_failed
from openrlhf_shear.fork.strategy import BEST, remove_others
from openrlhf_shear.fork.training_suite import TrainingSuite
from openrlhf_shear.fork.upstream import plain_class
from openrlhf_shear.rewards.ledger import Ledger

logger = init_logger(__name__)
_NO_PROMPTS = ("no --eval.dataset, a suite only",)  # upstream evaluates if there is an evaluation data loader


class ShearTrainer(plain_class(PPOTrainer)):
    """With `args.credit` None this is upstream's trainer, plus the ledger, `--eval.before_train` and `--eval.suite`."""

    def __init__(self, *args, **kwargs):
        with recorded_problems() as problems:
            super().__init__(*args, **kwargs)
        write_run_facts(self.args)
        self._suite = None
        if self.args.eval.suite:
            self._suite = TrainingSuite(self.args, self.vllm_engines, self.tokenizer)
            self.best_eval_metric_key = self.best_eval_metric_key or SUITE_AVERAGE
            self.eval_dataloader = self.eval_dataloader or _NO_PROMPTS
        self._prm_loads: list[ray.ObjectRef] = []
        self.experience_maker = self._make_experience_maker(problems)
        self.samples_generator = LedgerSamplesGenerator(
            self.strategy, self.prompts_dataloader, self.eval_dataloader, self.tokenizer, self.vllm_engines
        )

    def _make_experience_maker(self, problems: dict[str, str]) -> GradedExperienceMaker:
        upstream = self.experience_maker
        groups = ("actor_model_group", "critic_model_group", "reward_model_group", "initial_model_group")
        parts = (*(getattr(upstream, name) for name in groups), upstream.kl_ctl, upstream.strategy, upstream.tokenizer)
        rule = None if self.args.credit is None else load_rule(self.args.credit)
        self._weighs = isinstance(rule, CreditRule)
        if not self._weighs:
            return GradedExperienceMaker(*parts)
        self._dump = RolloutDump(self.args, rule.name, upstream.tokenizer)
        scorer = None
        if "prm_scores" in rule.needs:
            config = self.args.credit.prm
            colocated = self.args.train.colocate_all
            scorer = StepScorer(self._start_prm(config), config, upstream.tokenizer, problems, colocated)
        return CreditExperienceMaker(*parts, step_scorer=scorer)

    def _start_prm(self, config: PrmConfig) -> PrmGroup:
        """Placed as upstream places its reward model. It loads while upstream's models do; `fit` waits for it."""
        shared = self.actor_model_group.placement_group if self.args.train.colocate_all else None
        if shared is None:
            logger.info(f"the process reward model waits for {config.num_nodes} x {config.num_gpus_per_node} GPUs")
        actor_class = ray.remote(num_gpus=1)(PrmActor)
        group = PrmGroup(
            config.num_nodes, config.num_gpus_per_node, actor_class, shared, num_gpus_per_actor=0.2 if shared else 1
        )
        self._prm_loads = group.async_init_model_from_pretrained(self.strategy, config)
        return group

    def fit(self, global_step: int = 0) -> None:
        ray.get(self._prm_loads)
        states = self.init_checkpoint_states()
        self.samples_generator.episodes_left = self.args.train.num_episodes - states["episode"]
        fresh = global_step == 0 and states["global_step"] == 0
        if fresh and self.args.eval.before_train and self.eval_dataloader:
            evaluation = {name: getattr(self.args.eval, name) for name in ("temperature", "n_samples_per_prompt")}
            self.evaluate(0, **self.generate_kwargs | evaluation)
        if "ledger" in states:
            self.samples_generator.ledger = Ledger.resumed(states["ledger"])
        self._finish_evaluation(states)
        super().fit(global_step)
        self._balance()

    def _finish_evaluation(self, states: dict) -> None:
        """Upstream saves a step before it evaluates it, and resumes behind it: what was interrupted is done here."""
        step = states["global_step"]
        due = self._suite is not None and step > 0 and step % self.args.eval.steps == 0
        if due and self._suite.interrupted(step):
            self.restore_best_checkpoint_state(states)
            self.broadcast_to_vllm()
            metrics = self._evaluate_suite(step, go_on=True)
            kept = ("episode", "global_step", "total_consumed_prompts", "data_loader_state_dict", "ledger")
            self.save_best_checkpoint(metrics, step, {name: states[name] for name in kept if name in states})

    def restore_best_checkpoint_state(self, checkpoint_states) -> None:
        """As upstream's, but a better evaluation since then stays the best."""
        best = self.best_eval_metric_value
        super().restore_best_checkpoint_state(checkpoint_states)
        self.best_eval_metric_value = max(best, self.best_eval_metric_value)

    def train_step(self, rollout_samples, global_step: int):
        actor_runs = global_step > self.args.critic.freezing_steps
        dumps = self._weighs and self._dump.due(global_step + 1)
        if self._weighs:
            self.experience_maker.shows = dumps
        status, global_step = super().train_step(rollout_samples, global_step)
        if self._weighs:
            status.update(self.experience_maker.credit_metrics)
        if dumps:
            status.update(self._dump.write(global_step, self.experience_maker.made))
        status.update(self._close_books(rollout_samples, actor_runs))
        return status, global_step

    def _close_books(self, rollout_samples, actor_ran: bool) -> dict[str, float]:
        """The ledger after an update of `rollout_samples`."""
        ledger = self.samples_generator.ledger
        graded = sum(not is_failed(sample) for sample in rollout_samples)
        trained = graded  # in steps that update the critic alone
        if actor_ran:
            copies = self.args.ds.ring_attn_size * self.args.ds.tensor_parallel_size
            trained = sum(ray.get(self.actor_model_group.async_run_method("take_trained"))) // copies
        ledger.trained += trained
        if trained < graded:
            ledger.failed["left out of the update"] += graded - trained
            logger.warning(
                f"{graded - trained} of {graded} rollouts with a reward were left out of the update: OpenRLHF drops "
                "what does not fill a batch; make rollout.batch_size * rollout.n_samples_per_prompt a multiple "
                "of train.batch_size"
            )
        return self._balance()

    def _balance(self) -> dict[str, float]:
        metrics = self.samples_generator.ledger.metrics(self.samples_generator.waiting)
        logger.info("ledger: " + ", ".join(f"{k.removeprefix('ledger/')} {v:.0f}" for k, v in metrics.items()))
        return metrics

    def evaluate(self, global_step, **generate_kwargs):
        if self.eval_dataloader is _NO_PROMPTS:
            return self._evaluate_suite(global_step)
        logs = super().evaluate(global_step, **generate_kwargs)
        if self._suite is not None:
            logs |= self._evaluate_suite(global_step)
        if self.samples_generator.eval_failed:
            logger.warning(
                f"evaluation at step {global_step}: {self.samples_generator.eval_failed} rewards failed and count as 0"
            )
        return logs

    def _evaluate_suite(self, global_step: int, go_on: bool = False) -> dict[str, float]:
        metrics = self._suite.evaluate(global_step, go_on)
        for tracker in (self.wandb_logger, self.tensorboard_logger):
            if tracker:
                tracker.log_eval(global_step, metrics)
        logger.info(f"benchmarks at step {global_step}: {metrics}")
        return metrics

    def save_best_checkpoint(self, eval_metrics, global_step, client_states=None) -> None:
        before = self.best_eval_metric_value
        super().save_best_checkpoint(eval_metrics, global_step, client_states)
        if self.best_eval_metric_value > before:  # with --ckpt.save_hf upstream keeps a model of each
            remove_others(Path(self.args.ckpt.path), f"{BEST}*_hf", f"{BEST}_global_step{global_step}_hf")

    def _compute_rollout_stats(self, experiences) -> dict:
        """As upstream's, with the rewards' mean and deviation over those that did not fail."""
        stats = super()._compute_rollout_stats(experiences)
        if FAILED in experiences[0].info:
            rewards = torch.cat([e.info["reward"][~e.info[FAILED].flatten().bool()] for e in experiences]).float()
            stats["rollout/reward_mean"] = rewards.mean().item() if len(rewards) else 0.0
            stats["rollout/reward_std"] = rewards.std().item() if len(rewards) > 1 else 0.0
        return stats

    def save_logs_and_checkpoints(self, global_step: int, logs_dict=None, client_states=None) -> None:
        if logs_dict and self._weighs:
            name = self.experience_maker.rule.name
            seconds = logs_dict[f"{name}/credit_seconds"]
            logs_dict[f"{name}/credit_share"] = share = seconds / max(logs_dict["timing/step_total"], 1e-9)
            logger.info(f"{name} step {global_step}: credit stage {seconds:.2f} s, {share:.1%} of the step")
        if client_states is not None:
            client_states["ledger"] = self.samples_generator.ledger.state(self.samples_generator.waiting)
        super().save_logs_and_checkpoints(global_step, logs_dict, client_states)
