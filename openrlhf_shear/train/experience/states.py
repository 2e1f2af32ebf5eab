"""Return path of hidden states from OpenRLHF's model actors, for diagnosis and for rules outside the actor."""

from collections.abc import Sequence

import ray
import torch
from openrlhf.models import Actor
from openrlhf.trainer.ray.launcher import RayActorGroup, ReferenceModelActor

from openrlhf_shear.credit.captured import captured_lm_head_input, one_earlier, response_states
from openrlhf_shear.train.nodes.worker import HoldsItsPort
from openrlhf_shear.train.upstream import plain_class

STATES = frozenset({"hidden_states", "source_states"})  # of `credit.rule.NEEDS`


class ReadsStates:
    """Mixin that reads hidden states of `actor`, for an actor of OpenRLHF whose `forward` returns log-probs."""

    def hidden_states(self, sequences, action_mask, attention_mask) -> list[ray.ObjectRef]:
        """Return references to the hidden states of a micro-batch: one (T_i, d) CPU tensor per rollout.

        The objects live in this node's store and belong to this actor; only references go to the caller.
        """
        names = frozenset({"hidden_states"})
        _, states = self._forward_with_states(sequences, action_mask, attention_mask, None, None, names)
        # Each state is a view of the whole micro-batch's tensor: without the copy, each object would store all of it.
        return [ray.put(state.to("cpu", copy=True)) for state in states["hidden_states"]]

    def _forward_with_states(
        self,
        sequences,
        action_mask,
        attention_mask,
        packed_seq_lens,
        mm_train_inputs_list,
        names: frozenset[str],
        rows: Sequence[bool] | None = None,
    ) -> tuple[torch.Tensor, dict[str, list[torch.Tensor]]]:
        """Return log-probs (B, A) on the CPU, and on the device, by `names`, states of those `rows` that are True."""
        others = {"packed_seq_lens": packed_seq_lens, "mm_train_inputs_list": mm_train_inputs_list}
        with torch.no_grad(), captured_lm_head_input(self.actor.model.module) as captured:
            log_probs = super().forward(sequences, action_mask, attention_mask, **others)
        if len(captured) != 1:
            raise RuntimeError(f"the LM head ran {len(captured)} times in one forward pass, expected once")
        hidden = of_ring(captured[0], self.strategy.ring_attn_group, int(attention_mask.sum()))
        mask = action_mask if rows is None else action_mask * torch.tensor(rows)[:, None]
        masks = {"hidden_states": mask, "source_states": one_earlier(mask)}
        packed = self.actor.packing_samples
        return log_probs, {name: response_states(hidden, attention_mask, masks[name], packed) for name in names}


class StatesActor(ReadsStates, plain_class(ReferenceModelActor)):
    """Read-only policy: OpenRLHF's reference model, without an optimizer."""

    @property
    def actor(self) -> Actor:
        return self.model


class ShearActorGroup(RayActorGroup):
    """Actor group of OpenRLHF that can also hand out hidden states; its first actor holds the port of the ranks' store.

    Attributes:
        placement_group: where the actors run; None if the group has GPUs to itself.
    """

    def __init__(self, num_nodes, num_gpus_per_node, ray_actor_type, pg=None, *args, **kwargs):
        actor = plain_class(ray_actor_type)
        holding = ray.remote(num_gpus=1)(type(actor.__name__, (HoldsItsPort, actor), {}))
        super().__init__(num_nodes, num_gpus_per_node, holding, pg, *args, **kwargs)
        self.placement_group = pg

    @property
    def actors(self) -> list[ray.actor.ActorHandle]:
        """Actor handles, in rank order."""
        return list(self._actor_handlers)

    def stop(self) -> None:
        """Kill the actors at once."""
        for actor in self.actors:
            ray.kill(actor)

    def async_hidden_states(self, samples_list) -> list[ray.ObjectRef]:
        """Return `ReadsStates.hidden_states` of every rollout, in the order of `samples_list`.

        Args:
            samples_list: OpenRLHF `Experience` micro-batches, at least one per rank. With ZeRO-3 their number must be a
                multiple of the number of ranks, since every forward pass is a collective.
        """
        inputs = ("sequences", "action_mask", "attention_mask")
        columns = {name: [getattr(samples, name) for samples in samples_list] for name in inputs}
        per_rank = ray.get(self.async_run_method_batch("hidden_states", **columns))[:: self.duplicate_actors]
        return [ref for micro_batches in per_rank for refs in micro_batches for ref in refs]


def of_ring(hidden: torch.Tensor, ring: torch.distributed.ProcessGroup | None, tokens: int) -> torch.Tensor:
    """Join a ring's equal slices to (1, tokens, d) and drop the padding; without a ring return `hidden` unchanged."""
    if ring is None:
        return hidden
    whole = hidden.new_empty(ring.size() * hidden.shape[1], hidden.shape[2])
    torch.distributed.all_gather(list(whole.chunk(ring.size())), hidden[0].contiguous(), ring)
    return whole[None, :tokens]
