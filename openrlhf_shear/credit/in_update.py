"""Rules that act in the update: between a policy's forward pass and its loss, by hooks on the two modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from openrlhf_shear.credit.rule import UpdateRule, checked_advantages


@contextmanager
def shaped_advantages(
    rule: UpdateRule, actor: torch.nn.Module, loss: torch.nn.Module
) -> Iterator[list[dict[str, float]]]:
    """While open, `loss` gets the rule's advantages in place of those it is called with.

    Args:
        actor: returns (log-probs, output); `output.entropy` is (B, T - 1), its last A columns the loss's.
        loss: called as OpenRLHF's `PolicyLoss`: (log_probs, old_log_probs, advantages, action_mask=..., ...), (B, A)
            each.

    Yields:
        A list that collects the rule's metrics, micro-batch by micro-batch.
    """
    latest: list[torch.Tensor] = []
    metrics: list[dict[str, float]] = []

    def keep_entropy(module, args, output):
        latest[:] = [output[1].entropy.detach()]

    def shape(module, args, kwargs):
        log_probs, old_log_probs, advantages, *rest = args
        mask = kwargs["action_mask"].bool()
        entropies = latest.pop()[:, -advantages.shape[1] :]
        shaped, found = checked_advantages(rule, advantages, entropies.float(), mask)
        metrics.append(found)
        return (log_probs, old_log_probs, shaped, *rest), kwargs

    handles = [actor.register_forward_hook(keep_entropy), loss.register_forward_pre_hook(shape, with_kwargs=True)]
    try:
        yield metrics
    finally:
        for handle in handles:
            handle.remove()


def means(metrics: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each metric over the micro-batches that have it."""
    names = {name for found in metrics for name in found}
    values = {name: [found[name] for found in metrics if name in found] for name in sorted(names)}
    return {name: sum(found) / len(found) for name, found in values.items()}
