"""The policy actor that weighs tokens where the hidden states are."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from openrlhf.models import Actor
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor

from openrlhf_shear.credit.captured import captured_entropies
from openrlhf_shear.credit.groups import CreditRequest, GroupCollector
from openrlhf_shear.credit.in_update import shaped_advantages
from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.credit.rule import CreditRule, GroupCredit, UpdateRule, means
from openrlhf_shear.fork.samples import FAILED
from openrlhf_shear.fork.states import ReadsStates
from openrlhf_shear.fork.upstream import plain_class


class ShearPolicyActor(ReadsStates, plain_class(PolicyModelActor)):
    """OpenRLHF's policy actor; its forward pass can weigh the tokens of whole groups on the way."""

    @property
    def _policy(self) -> Actor:
        return self.actor

    def init_model_from_pretrained(self, strategy, *args, **kwargs):
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        spec = strategy.args.credit
        self._rule = load_rule(spec) if spec is not None else None
        self._collector = GroupCollector(self._rule) if isinstance(self._rule, CreditRule) else None
        self._trained = 0

    def forward(
        self,
        sequences,
        action_mask=None,
        attention_mask=None,
        packed_seq_lens=None,
        mm_train_inputs_list=None,
        credit: CreditRequest | None = None,
    ) -> torch.Tensor:
        """Log-probs as upstream's, (B, A) on the CPU; with `credit`, the group collector takes what the rule needs.

        The weights of the groups that are complete by then wait for `take_group_credits`.
        """
        inputs = (sequences, action_mask, attention_mask, packed_seq_lens, mm_train_inputs_list)
        if credit is None:
            return super().forward(*inputs)
        needs, tensors = self._rule.needs, {}
        mask = action_mask.bool().cpu()
        with captured_entropies(self.actor) if "entropies" in needs else nullcontext() as entropies:
            if "hidden_states" in needs:
                log_probs, tensors["hidden_states"] = self._forward_with_states(*inputs)
            else:
                log_probs = super().forward(*inputs)
        if "log_probs" in needs:
            tensors["log_probs"] = _of_responses(log_probs, mask)
        if "entropies" in needs:
            tensors["entropies"] = _of_responses(entropies[0][:, -mask.shape[1] :], mask)
        self._collector.add(credit, mask.sum(1).tolist(), tensors)
        return log_probs

    def fit(self, *args, **kwargs) -> dict:
        """Upstream's update, which drops what does not fill a batch; counts the rollouts that it reads."""
        upstream_step, read = self.trainer.training_step, []

        def counted(experience, *args, **kwargs):
            failed = sum(int(flag) for flag in experience.info.get(FAILED, []))
            read.append(len(experience.sequences) - failed)
            return upstream_step(experience, *args, **kwargs)

        self.trainer.training_step = counted
        try:
            if not isinstance(self._rule, UpdateRule):
                return super().fit(*args, **kwargs)
            with shaped_advantages(self._rule, self.trainer.actor, self.trainer.actor_loss_fn) as metrics:
                status = super().fit(*args, **kwargs)
            return status | {f"{self._rule.name}/{name}": value for name, value in means(metrics).items()}
        finally:
            self.trainer.training_step = upstream_step
            self._trained = sum(read) // self.trainer.max_epochs

    def take_trained(self) -> int:
        """Rollouts with a reward that the last update read on this rank."""
        trained, self._trained = self._trained, 0
        return trained

    def take_group_credits(self) -> list[GroupCredit]:
        """The token weights of every group this rank has seen since the last call (kilobytes; the states stay here)."""
        return self._collector.take()


def _of_responses(values: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """(B, A) of any device to B tensors (T_i,), float32 on the CPU."""
    return [row[keep] for row, keep in zip(values.float().cpu(), mask, strict=True)]
