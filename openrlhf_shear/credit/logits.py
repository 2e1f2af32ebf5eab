"""Distributions from which tokens were drawn, made anew from states and the LM head: they are too wide to keep.

Legend: T tokens, d hidden size, V tokens of the vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

CHUNK_BYTES = 1 << 28  # of float32 logits at a time


@dataclass(frozen=True)
class LMHead:
    """A policy's LM head."""

    weight: torch.Tensor  # (V, d), in the policy's dtype; the policy's own tensor, so a rule must not change it
    temperature: float = 1.0  # of sampling: logits are divided by it

    def log_probs(self, states: torch.Tensor) -> torch.Tensor:
        """Return the log-probs (T, V) float32 of all tokens, given the source states (T, d).

        The product is made in the policy's dtype, as in its forward pass.
        """
        logits = torch.nn.functional.linear(states.to(self.weight.dtype), self.weight)
        return (logits.float() / self.temperature).log_softmax(-1)

    def chunks(self, states: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield the log-probs as `log_probs` does, for a few tokens at a time: the tokens, and their (n, V)."""
        rows = max(CHUNK_BYTES // (4 * len(self.weight)), 1)
        for start in range(0, len(states), rows):
            tokens = slice(start, min(start + rows, len(states)))
            yield tokens, self.log_probs(states[tokens])
