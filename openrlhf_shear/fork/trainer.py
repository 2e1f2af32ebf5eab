"""The PPO trainer: OpenRLHF's, with the fork's experience maker, its metrics, and an evaluation before training."""

from __future__ import annotations

import ray
import torch
from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.credit.rule import CreditRule
from openrlhf_shear.fork.experience_maker import CreditExperienceMaker
from openrlhf_shear.fork.graded_experience import GradedExperienceMaker
from openrlhf_shear.fork.samples import FAILED, LedgerSamplesGenerator, is_failed
from openrlhf_shear.fork.upstream import plain_class
from openrlhf_shear.rewards.ledger import Ledger

logger = init_logger(__name__)


class ShearTrainer(plain_class(PPOTrainer)):
    """With `args.credit` None this is upstream's trainer, plus the ledger and `--eval.before_train`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        upstream = self.experience_maker
        rule = None if self.args.credit is None else load_rule(self.args.credit)
        self._weighs = isinstance(rule, CreditRule)
        maker = CreditExperienceMaker if self._weighs else GradedExperienceMaker
        self.experience_maker = maker(
            upstream.actor_model_group,
            upstream.critic_model_group,
            upstream.reward_model_group,
            upstream.initial_model_group,
            upstream.kl_ctl,
            upstream.strategy,
            upstream.tokenizer,
        )
        self.samples_generator = LedgerSamplesGenerator(
            self.strategy, self.prompts_dataloader, self.eval_dataloader, self.tokenizer, self.vllm_engines
        )

    def fit(self, global_step: int = 0) -> None:
        states = self.init_checkpoint_states()
        self.samples_generator.episodes_left = self.args.train.num_episodes - states["episode"]
        fresh = global_step == 0 and states["global_step"] == 0
        if fresh and self.args.eval.before_train and self.eval_dataloader:
            self.evaluate(
                0,
                **{
                    **self.generate_kwargs,
                    "temperature": self.args.eval.temperature,
                    "n_samples_per_prompt": self.args.eval.n_samples_per_prompt,
                },
            )
        if "ledger" in states:
            self.samples_generator.ledger = Ledger.resumed(states["ledger"])
        super().fit(global_step)
        self._balance()

    def train_step(self, rollout_samples, global_step: int):
        actor_runs = global_step > self.args.critic.freezing_steps
        status, global_step = super().train_step(rollout_samples, global_step)
        if self._weighs:
            status.update(self.experience_maker.credit_metrics)
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
        logs = super().evaluate(global_step, **generate_kwargs)
        if self.samples_generator.eval_failed:
            logger.warning(
                f"evaluation at step {global_step}: {self.samples_generator.eval_failed} rewards failed and count as 0"
            )
        return logs

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
