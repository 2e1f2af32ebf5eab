"""The critic's actor: OpenRLHF's, with updates that are watched and that a resumed run repeats."""

import transformers
from openrlhf.trainer.ray.ppo_critic import CriticModelActor

from openrlhf_shear.fork.arrival import Arrival
from openrlhf_shear.fork.update import CriticSteps
from openrlhf_shear.fork.upstream import plain_class


class ShearCriticActor(plain_class(CriticModelActor)):
    """OpenRLHF's critic; its update is `CriticSteps`'."""

    def set_seed(self, seed: int) -> None:
        """As `ShearPolicyActor.set_seed`."""
        transformers.set_seed(seed % 2**32)

    def init_model_from_pretrained(self, strategy, *args, **kwargs):
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        strategy.arrival = Arrival(self.critic, "critic")

    def fit(self) -> dict:
        """Upstream's update, watched.

        Raises:
            GradientLostError: as `ShearPolicyActor.fit`.
        """
        steps = CriticSteps(self.trainer, self.critic)
        with steps.watching():
            super().fit()
        return steps.status()
