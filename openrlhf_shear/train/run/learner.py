"""OpenRLHF's training step on the model groups of a run: experience, update, and the weights to the engines."""

import ray
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ray.launcher import RayActorGroup

from openrlhf_shear.train.carriers import RunState
from openrlhf_shear.train.experience.fillers import without_fillers
from openrlhf_shear.train.experience.graded_experience import GradedExperienceMaker, reward_stats
from openrlhf_shear.train.sampling.batches import Batches
from openrlhf_shear.train.sampling.engines import Engines
from openrlhf_shear.train.sampling.order import seed_of
from openrlhf_shear.train.screen.outcome import GradientLostError, NotFiniteError


class Learner(BasePPOTrainer):
    """OpenRLHF's trainer without its loop, its data, its loggers and its checkpoints, which `run/` has."""

    def __init__(
        self,
        maker: GradedExperienceMaker,
        engines: Engines,
        batches: Batches,
    ):
        """Set what upstream's `train_step` reads; upstream's constructor makes its own maker and loggers."""
        self.strategy, self.args, self.tokenizer = maker.strategy, maker.args, maker.tokenizer
        self.actor_model_group, self.critic_model_group = maker.actor_model_group, maker.critic_model_group
        self.experience_maker, self.kl_ctl = maker, maker.kl_ctl
        self.vllm_engines, self._engines, self._batches = engines.handles, engines, batches

    def checkpoint_states(self) -> RunState | None:
        """Return the states of the checkpoint that the policy has loaded; None for a fresh start."""
        return ray.get(self.actor_model_group.async_run_method("get_checkpoint_states"))[0] or None

    def begin_update(self, step: int) -> None:
        """Seed the shuffling and dropout of a step on every rank."""
        seed = seed_of(self.args.train.seed, "update", step)
        for group in filter(None, (self.actor_model_group, self.critic_model_group)):
            ray.get(group.async_run_method("begin_update", seed))

    def ppo_train(self, global_steps: int) -> dict:
        """Update the models as upstream does; errors that end the run name the step."""
        try:
            return super().ppo_train(global_steps)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, NotFiniteError | GradientLostError):
                why = f"step {global_steps + 1}: {error.cause}; the last checkpoint stands"
                raise type(error.cause)(why) from None
            raise

    def take_trained(self) -> int:
        """Return the number of rollouts in the applied optimizer steps of the last update."""
        copies = self.args.ds.ring_attn_size * self.args.ds.tensor_parallel_size
        return sum(ray.get(self.actor_model_group.async_run_method("take_trained"))) // copies

    def broadcast_to_vllm(self) -> None:
        """Send the weights to the engines as upstream does; restart dead engines.

        This happens between two batches; with --train.partial_rollout_enable, also during a batch.
        """
        if self.args.vllm.enable_sleep:
            self._engines.call("wake_up", tags=["weights"])
        partial = self.args.train.partial_rollout_enable
        with self._engines.paused() if partial else self._batches.undisturbed():
            self._engines.persist("weights", lambda: send_weights(self.actor_model_group))

    def _compute_rollout_stats(self, experiences) -> dict:
        """Compute upstream's statistics without fillers; the rewards' mean and deviation leave out failed rewards."""
        experiences = without_fillers(experiences)
        return super()._compute_rollout_stats(experiences) | reward_stats(experiences)


def send_weights(policy: RayActorGroup) -> None:
    """Send the policy's weights to all engines."""
    ray.get(policy.async_run_method("broadcast_to_vllm"))
