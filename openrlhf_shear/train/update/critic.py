"""Critic actor of OpenRLHF with watched updates, which a resumed run repeats exactly."""

from pathlib import Path

import transformers
from openrlhf.trainer.ray.ppo_critic import CriticModelActor

from openrlhf_shear.train.carriers import Save
from openrlhf_shear.train.checkpoints.folders import CRITIC
from openrlhf_shear.train.checkpoints.saveable import model_written, refuse_unsaveable
from openrlhf_shear.train.update.arrival import Arrival
from openrlhf_shear.train.update.update import CriticSteps, refuse_broken_weights
from openrlhf_shear.train.upstream import plain_class


class ShearCriticActor(plain_class(CriticModelActor)):
    """Critic actor whose updates run under `CriticSteps`."""

    def begin_update(self, seed: int) -> None:
        """Seed the next update, as `ShearPolicyActor.begin_update` does."""
        transformers.set_seed(seed % 2**32)

    def init_model_from_pretrained(self, strategy, *args, **kwargs):
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        if self.tokenizer is not None:  # --critic.save_value_network
            refuse_unsaveable("--critic.model_name_or_path", self.critic.module, self.tokenizer)
        strategy.arrival = Arrival(self.critic, "critic")
        refuse_broken_weights(self.critic.module, "critic", "as it was loaded")

    def fit(self) -> dict:
        """Run upstream's update, watched; return its metrics.

        Raises:
            GradientLostError: the first optimizer step lacks the gradient of a micro-batch.
            NotFiniteError: a weight is not finite afterwards.
        """
        steps = CriticSteps(self.trainer, self.critic)
        with steps.watching():
            super().fit()
        refuse_broken_weights(self.critic.module, "critic", "after an update")
        return steps.status() | {"critic_skipped_steps": float(steps.skipped_steps)}

    def save_model(self) -> None:
        """Save the critic's model as upstream does. Raises ModelNotWrittenError: the disk refuses it."""
        with model_written(self.strategy.args.ckpt):
            super().save_model()

    def save_checkpoint(self, what: Save, metric_value=None, metric_key=None) -> None:
        """Save a checkpoint as `ShearPolicyActor.save_checkpoint` does. Raises NotSavedError: the disk refuses it."""
        ckpt = self.strategy.args.ckpt
        if what.checkpoint:
            options = (ckpt.max_num, ckpt.max_mem, None, not what.best, metric_value, metric_key)
            self.strategy.save_ckpt(self.critic, str(Path(ckpt.path, CRITIC)), what.tag, *options)
