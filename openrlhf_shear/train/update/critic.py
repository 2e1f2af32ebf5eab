"""Critic actor of OpenRLHF with watched updates, which a resumed run repeats exactly."""

import transformers
from openrlhf.trainer.ray.ppo_critic import CriticModelActor

from openrlhf_shear.train.update.arrival import Arrival
from openrlhf_shear.train.update.saveable import refuse_unsaveable
from openrlhf_shear.train.update.update import CriticSteps
from openrlhf_shear.train.upstream import plain_class


class ShearCriticActor(plain_class(CriticModelActor)):
    """Critic actor whose updates run under `CriticSteps`."""

    def set_seed(self, seed: int) -> None:
        """Seed the next update, as `ShearPolicyActor.set_seed` does."""
        transformers.set_seed(seed % 2**32)

    def init_model_from_pretrained(self, strategy, *args, **kwargs):
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        if self.tokenizer is not None:  # --critic.save_value_network
            refuse_unsaveable("--critic.model_name_or_path", self.critic.module, self.tokenizer)
        strategy.arrival = Arrival(self.critic, "critic")

    def fit(self) -> dict:
        """Run upstream's update, watched; return its metrics.

        Raises:
            GradientLostError: the first optimizer step lacks the gradient of a micro-batch.
        """
        steps = CriticSteps(self.trainer, self.critic)
        with steps.watching():
            super().fit()
        return steps.status()
