"""Hidden states out of OpenRLHF's model actors: the return path, for diagnosis and for rules outside the actor."""

from __future__ import annotations

from abc import abstractmethod

import ray
import torch
from openrlhf.models import Actor
from openrlhf.trainer.ray.launcher import ReferenceModelActor

from openrlhf_shear.credit.captured import captured_lm_head_input, response_states
from openrlhf_shear.fork.upstream import plain_class


class ReadsStates:
    """Mixed into a model actor of OpenRLHF, whose `forward` gives log-probs."""

    @property
    @abstractmethod
    def _policy(self) -> Actor: ...

    def hidden_states(self, sequences, action_mask, attention_mask) -> list[ray.ObjectRef]:
        """The return path: hidden states of one micro-batch as references, one (T_i, d) CPU tensor a rollout.

        The objects live in this node's store and are owned by this actor; only references go to the caller.
        """
        _, states = self._forward_with_states(sequences, action_mask, attention_mask, None, None)
        # Each is a view of the whole micro-batch's states, which would be stored once a rollout without the copy.
        return [ray.put(state.to("cpu", copy=True)) for state in states]

    def _forward_with_states(self, sequences, action_mask, attention_mask, packed_seq_lens, mm_train_inputs_list):
        """Log-probs (B, A) on the CPU, and the states of each row's response, on the device."""
        others = {"packed_seq_lens": packed_seq_lens, "mm_train_inputs_list": mm_train_inputs_list}
        with torch.no_grad(), captured_lm_head_input(self._policy.model.module) as captured:
            log_probs = super().forward(sequences, action_mask, attention_mask, **others)
        if len(captured) != 1:
            raise RuntimeError(f"the LM head ran {len(captured)} times in one forward pass, expected once")
        states = response_states(captured[0], attention_mask, action_mask, packed=self._policy.packing_samples)
        return log_probs, states


class StatesActor(ReadsStates, plain_class(ReferenceModelActor)):
    """A policy that is only read: OpenRLHF's reference model, without an optimizer."""

    @property
    def _policy(self) -> Actor:
        return self.model
