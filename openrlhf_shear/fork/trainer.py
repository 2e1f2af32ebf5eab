"""The PPO trainer: OpenRLHF's, with the fork's experience maker, its metrics, and an evaluation before training."""

from __future__ import annotations

from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.fork.experience_maker import ShearExperienceMaker
from openrlhf_shear.fork.upstream import plain_class

logger = init_logger(__name__)


class ShearTrainer(plain_class(PPOTrainer)):
    """With `args.shear` None this is upstream's trainer, plus `--eval.before_train`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.args.shear is not None:
            upstream = self.experience_maker
            self.experience_maker = ShearExperienceMaker(
                upstream.actor_model_group,
                upstream.critic_model_group,
                upstream.reward_model_group,
                upstream.initial_model_group,
                upstream.kl_ctl,
                upstream.strategy,
                upstream.tokenizer,
            )

    def fit(self, global_step: int = 0) -> None:
        fresh = global_step == 0 and self.init_checkpoint_states()["global_step"] == 0
        if fresh and self.args.eval.before_train and self.eval_dataloader:
            self.evaluate(
                0,
                **{
                    **self.generate_kwargs,
                    "temperature": self.args.eval.temperature,
                    "n_samples_per_prompt": self.args.eval.n_samples_per_prompt,
                },
            )
        super().fit(global_step)

    def train_step(self, rollout_samples, global_step: int):
        status, global_step = super().train_step(rollout_samples, global_step)
        if self.args.shear is not None:
            status.update(self.experience_maker.credit_metrics)
        return status, global_step

    def save_logs_and_checkpoints(self, global_step: int, logs_dict=None, client_states=None) -> None:
        if logs_dict and "shear/credit_seconds" in logs_dict:
            share = logs_dict["shear/credit_seconds"] / max(logs_dict["timing/step_total"], 1e-9)
            logs_dict["shear/credit_share"] = share
            logger.info(
                f"SHEAR step {global_step}: credit stage {logs_dict['shear/credit_seconds']:.2f} s, {share:.1%} of the "
                f"step; mixed groups {logs_dict['shear/mixed_groups']:.0%}, "
                f"mean omega {logs_dict.get('shear/omega_mean', 1.0):.3f}"
            )
        super().save_logs_and_checkpoints(global_step, logs_dict, client_states)
