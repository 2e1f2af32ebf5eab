"""The critic's actor: OpenRLHF's, with updates that a resumed run repeats, and that fillers may be part of."""

import math

import transformers
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray.ppo_critic import CriticModelActor

from openrlhf_shear.fork.fillers import FILLER
from openrlhf_shear.fork.upstream import plain_class


class ShearCriticActor(plain_class(CriticModelActor)):
    """A micro-batch of fillers alone counts as 0 in the mean of the values, which is over micro-batches."""

    def set_seed(self, seed: int) -> None:
        """As `ShearPolicyActor.set_seed`."""
        transformers.set_seed(seed % 2**32)

    def init_model_from_pretrained(self, *args, **kwargs):
        super().init_model_from_pretrained(*args, **kwargs)
        upstream_step = self.trainer.training_step

        def training_step(experience: Experience, *rest, **options) -> dict:
            experience.info.pop(FILLER, None)
            status = upstream_step(experience, *rest, **options)
            if not experience.action_mask.any() and math.isnan(status["values"]):
                status["values"] = 0.0
            return status

        self.trainer.training_step = training_step
