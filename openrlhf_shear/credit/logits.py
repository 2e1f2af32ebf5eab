"""Distributions from which tokens were drawn, made anew from states and the LM head: they are too wide to keep.

Legend: T tokens, d hidden size, V tokens of the vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch

CHUNK_BYTES = 1 << 28  # of float32 logits at a time
# entries of a config.json by which families of models scale or cap their logits
_CHANGES_LOGITS = ("final_logit_softcapping", "logits_scaling", "logit_scale", "output_multiplier_scale")
_CHANGES_LOGITS += ("lm_head_multiplier", "logits_soft_cap", "output_logit_soft_cap")


def plain_head(model: torch.nn.Module) -> torch.nn.Linear:
    """Return the LM head of a transformers model; ValueError: its product with the state is not the logits."""
    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        kind = f"{type(head).__module__}.{type(head).__name__}"
        raise ValueError(f"the LM head is a {kind}; leave it without adapters and quantisation")
    for name in _CHANGES_LOGITS:
        if getattr(model.config.get_text_config(decoder=True), name, None) not in (None, 1, 1.0):
            raise ValueError(f"{name} of the model's config.json changes the logits; use another model")
    return head


@dataclass(frozen=True)
class LMHead:
    """A policy's LM head."""

    weight: torch.Tensor  # (V, d), in the policy's dtype; the policy's own tensor, so a rule must not change it
    temperature: float = 1.0  # of sampling: logits are divided by it
    bias: torch.Tensor | None = None  # (V,), likewise; few families have it

    @classmethod
    def of(cls, model: torch.nn.Module, temperature: float = 1.0) -> Self:
        """Return the LM head of a transformers model.

        Raises ValueError: as `plain_head`, or the head is in shards.
        """
        head = plain_head(model)
        if head.weight.ndim != 2 or not head.weight.numel():
            raise ValueError("the LM head is cut into shards; use ZeRO-2")
        return cls(head.weight.detach(), temperature, None if head.bias is None else head.bias.detach())

    def log_probs(self, states: torch.Tensor) -> torch.Tensor:
        """Return the log-probs (T, V) float32 of all tokens, given the source states (T, d).

        The product is made in the policy's dtype, as in its forward pass.
        """
        logits = torch.nn.functional.linear(states.to(self.weight.dtype), self.weight, self.bias)
        return (logits.float() / self.temperature).log_softmax(-1)

    def chunks(self, states: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield the log-probs as `log_probs` does, for a few tokens at a time: the tokens, and their (n, V).

        A chunk and what makes it take some four times `CHUNK_BYTES`.
        """
        rows = max(CHUNK_BYTES // (4 * len(self.weight)), 1)
        for start in range(0, len(states), rows):
            tokens = slice(start, min(start + rows, len(states)))
            yield tokens, self.log_probs(states[tokens])
