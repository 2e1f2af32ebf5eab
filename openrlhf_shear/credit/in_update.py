"""Hooks for rules that act in the update, between a policy's forward pass and its loss."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from openrlhf_shear.credit.checks import checked_advantages
from openrlhf_shear.credit.rule import UpdateRule


@contextmanager
def shaped_advantages(
    rule: UpdateRule, actor: torch.nn.Module, loss: torch.nn.Module, metrics: list[dict[str, float]]
) -> Iterator[None]:
    """Replace the advantages with which `loss` is called by the rule's, while the context is open.

    Args:
        actor: returns (log-probs, output); `output.entropy` is (B, T - 1), and its last A columns belong to the loss.
        loss: called as OpenRLHF's `PolicyLoss`: (log_probs, old_log_probs, advantages, action_mask=...), (B, A) each.
        metrics: the rule's metrics are added here, as `NAME/...`, one dict per micro-batch.
    """
    latest: list[torch.Tensor] = []
    needed = "entropies" in rule.needs

    def keep_entropy(module, args, output):
        latest[:] = [output[1].entropy.detach()] if needed else []

    def shape(module, args, kwargs):
        log_probs, old_log_probs, advantages, *rest = args
        mask = kwargs["action_mask"].bool()
        entropies = latest.pop()[:, -advantages.shape[1] :] if needed else None
        shaped, said = checked_advantages(rule, advantages, mask, entropies, log_probs, old_log_probs)
        metrics.append({f"{rule.name}/{name}": value for name, value in said.items()})
        return (log_probs, old_log_probs, shaped, *rest), kwargs

    with actor.register_forward_hook(keep_entropy), loss.register_forward_pre_hook(shape, with_kwargs=True):
        yield
