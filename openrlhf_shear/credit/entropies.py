"""The entropies of a forward pass, asked of OpenRLHF's actor on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def captured_entropies(actor: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """While open, the actor computes entropies too; what its callers get stays the log-probs.

    Args:
        actor: OpenRLHF's `Actor`: with `return_output` and `return_entropy` it gives (log-probs, output), and
            `output.entropy` is (B, S - 1), nats, of the distribution (at the rollout's temperature) of the next token.

    Yields:
        A list that gets one detached tensor (B, S - 1) a forward pass.
    """
    captured: list[torch.Tensor] = []

    def ask(module, args, kwargs):
        return args, kwargs | {"return_output": True, "return_entropy": True}

    def take(module, args, output):
        log_probs, others = output
        captured.append(others.entropy.detach())
        return log_probs

    handles = [actor.register_forward_pre_hook(ask, with_kwargs=True), actor.register_forward_hook(take)]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()
