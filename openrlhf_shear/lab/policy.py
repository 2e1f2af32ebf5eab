"""The small policy while it is trained: float32 weights, and a copy of them that computes.

Legend: B sequences, S positions (padded on the right), A = S - 1: column j speaks of the token at position j + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from openrlhf_shear.credit.captured import captured_lm_head_input, response_states
from openrlhf_shear.lab.settings import LabSettings

BETAS = (0.9, 0.95)  # OpenRLHF's


@dataclass(frozen=True)
class Reading:
    """A forward pass over sequences.

    Attributes:
        log_probs: (B, A) float32, of the tokens that are there.
        entropies: (B, A) float32, nats, of what they were drawn from; no gradient.
        states: B of (T_i, d): what enters the LM head at each response token's own position; None unless asked for.
    """

    log_probs: torch.Tensor
    entropies: torch.Tensor
    states: list[torch.Tensor] | None


class Policy:
    """A policy and its optimiser.

    Weights and AdamW are in float32; forward and backward passes run in `settings.precision` on a copy, and its
    gradients are taken over: as DeepSpeed trains in bfloat16.
    """

    def __init__(self, folder: Path, settings: LabSettings):
        """
        Raises:
            ValueError: the folder holds no such policy.
        """
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        # Eager attention: faster than the fused one for a hundred short sequences in bfloat16 on a CPU.
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self._weights = [weight.detach().clone() for weight in loaded.parameters()]
        for parameter in loaded.parameters():  # not `.to`, which rounds the rotary frequencies too
            parameter.data = parameter.data.to(getattr(torch, settings.precision))
        self.model = loaded.eval()  # it has no dropout
        self._optimizer = torch.optim.AdamW(self._weights, lr=settings.learning_rate, betas=BETAS, weight_decay=0.0)
        self._max_grad_norm = settings.max_grad_norm

    def read(self, sequences: torch.Tensor, mask: torch.Tensor, states: bool = False) -> Reading:
        """A forward pass.

        Args:
            sequences: (B, S) int64, prompt and response, padded on the right, where causal attention never looks.
            mask: (B, A) bool, the response tokens.
            states: whether to give the hidden states.
        """
        with captured_lm_head_input(self.model) as captured:
            logits = self.model(input_ids=sequences, use_cache=False).logits[:, :-1].float()
        log_all = logits.log_softmax(-1)
        with torch.no_grad():
            entropies = -(log_all.exp() * log_all).sum(-1)
        kept = response_states(captured[0], torch.ones_like(sequences), mask, packed=False) if states else None
        return Reading(log_all.gather(-1, sequences[:, 1:, None]).squeeze(-1), entropies, kept)

    def update(self, loss: torch.Tensor) -> float:
        """One optimiser step down the loss; the norm of its gradient before clipping."""
        for parameter in self.model.parameters():
            parameter.grad = None
        loss.backward()
        for weight, parameter in zip(self._weights, self.model.parameters(), strict=True):
            weight.grad = parameter.grad.float()
        norm = torch.nn.utils.clip_grad_norm_(self._weights, self._max_grad_norm)
        self._optimizer.step()
        with torch.no_grad():
            for weight, parameter in zip(self._weights, self.model.parameters(), strict=True):
                parameter.copy_(weight)
        return norm.item()
