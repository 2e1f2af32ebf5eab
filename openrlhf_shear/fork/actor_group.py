"""The group of actors that hands out hidden states, and says where its actors are."""

from __future__ import annotations

import ray
from openrlhf.trainer.ray.launcher import RayActorGroup


class ShearActorGroup(RayActorGroup):
    """OpenRLHF's actor group, which can also hand out hidden states.

    Attributes:
        placement_group: the one it was put into; None if it got GPUs of its own.
    """

    def __init__(self, num_nodes, num_gpus_per_node, ray_actor_type, pg=None, *args, **kwargs):
        super().__init__(num_nodes, num_gpus_per_node, ray_actor_type, pg, *args, **kwargs)
        self.placement_group = pg

    @property
    def actors(self) -> list[ray.actor.ActorHandle]:
        """Its ranks, in order."""
        return list(self._actor_handlers)

    def stop(self) -> None:
        """End its actors, at once."""
        for actor in self.actors:
            ray.kill(actor)

    def async_hidden_states(self, samples_list) -> list[ray.ObjectRef]:
        """The hidden states of every rollout, as Ray object references: for diagnosis tools and outside credit rules.

        Args:
            samples_list: OpenRLHF `Experience` micro-batches, at least one a rank. With ZeRO-3 their number must be a
                multiple of the number of ranks, since every forward pass is a collective.

        Returns:
            One reference a rollout, in the order of `samples_list`, to a (T_i, d) CPU tensor.
        """
        per_rank = ray.get(
            self.async_run_method_batch(
                "hidden_states",
                sequences=[samples.sequences for samples in samples_list],
                action_mask=[samples.action_mask for samples in samples_list],
                attention_mask=[samples.attention_mask for samples in samples_list],
            )
        )
        return [ref for micro_batches in per_rank for refs in micro_batches for ref in refs]
