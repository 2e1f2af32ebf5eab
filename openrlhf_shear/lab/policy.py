"""The small policy: its start, and its training with float32 weights beside a copy that computes.

Legend: B sequences, S positions (padded on the right), A = S - 1: column j speaks of the token at position j + 1.
"""

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

from openrlhf_shear.credit.captured import LMHead, captured_lm_head_input, one_earlier, response_states
from openrlhf_shear.kernels.bfloat16 import multiply_in_float32
from openrlhf_shear.lab.settings import SHIPPED, LabSettings
from openrlhf_shear.lab.tasks import task_of
from openrlhf_shear.tasks.arithmetic.policy import fused_attention, load_policy

BETAS = (0.9, 0.95)  # as in OpenRLHF
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Reading:
    """The result of a forward pass over sequences."""

    log_probs: torch.Tensor  # (B, A) float32, of the actual tokens
    entropies: torch.Tensor  # (B, A) float32, nats, of the next-token distributions; no gradient
    # B of (T_i, d): the input of the LM head at each response token's own position; None unless asked for
    states: list[torch.Tensor] | None
    source_states: list[torch.Tensor] | None = None  # B of (T_i, d) likewise: the states from which tokens were drawn


class Policy:
    """A policy and its optimiser.

    Weights and AdamW are in float32. Forward and backward passes run in `settings.precision` on a copy of the weights,
    and the copy's gradients update them, as DeepSpeed trains in bfloat16.
    """

    def __init__(self, folder: Path, settings: LabSettings):
        """Load a policy; ValueError if the folder holds none."""
        multiply_in_float32()
        loaded, self.tokenizer = load_policy(folder)
        self._weights = [weight.detach().clone() for weight in loaded.parameters()]
        for parameter in loaded.parameters():  # not `.to`, which would round the rotary frequencies too
            parameter.data = parameter.data.to(getattr(torch, settings.precision))
        self.model = loaded  # it has no dropout
        self._optimizer = torch.optim.AdamW(self._weights, lr=settings.learning_rate, betas=BETAS, weight_decay=0.0)
        self._max_grad_norm = settings.max_grad_norm
        self._long = task_of(settings).long_responses

    def read(
        self, sequences: torch.Tensor, mask: torch.Tensor, states: bool = False, source_states: bool = False
    ) -> Reading:
        """Run a forward pass.

        Args:
            sequences: (B, S) int64, padded on the right, where causal attention never looks.
            mask: (B, A) bool, the response tokens.
            states, source_states: whether to return the hidden states, and those from which tokens were drawn.
        """
        attention = fused_attention(self.model) if self._long else contextlib.nullcontext()
        with captured_lm_head_input(self.model) as captured, attention:
            logits = self.model(input_ids=sequences, use_cache=False).logits[:, :-1].float()
        log_all = logits.log_softmax(-1)
        with torch.no_grad():
            entropies = -(log_all.exp() * log_all).sum(-1)

        def states_of(tokens: torch.Tensor) -> list[torch.Tensor]:
            return response_states(captured[0], torch.ones_like(sequences), tokens, packed=False)

        log_probs = log_all.gather(-1, sequences[:, 1:, None]).squeeze(-1)
        return Reading(
            log_probs,
            entropies,
            states_of(mask) if states else None,
            states_of(one_earlier(mask)) if source_states else None,
        )

    @property
    def lm_head(self) -> LMHead:
        return LMHead(self.model.get_output_embeddings().weight.detach())

    @property
    def state(self) -> dict[str, object]:
        """All that an update reads and writes: the weights, the optimizer's state and settings, the model's hooks."""
        hooks = [len(module._forward_hooks) + len(module._backward_hooks) for module in self.model.modules()]
        weights = [*self._weights, *self.model.parameters()]
        return {"the policy": [weights, hooks], "the optimizer": self._optimizer.state_dict()}

    def update(self, loss: torch.Tensor) -> float:
        """Take one optimiser step on the loss; return the norm of its gradient before clipping."""
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


def start_policy(settings: LabSettings) -> Path:
    """Return the start policy's folder; ValueError where there is no such policy for this task."""
    task = task_of(settings)
    if settings.start == SHIPPED:
        return task.shipped()
    folder = Path(settings.start)
    if not (folder / WEIGHTS).is_file():
        raise ValueError(
            f"lab.start: no policy in {folder}; use {SHIPPED}, or a folder from python -m openrlhf_shear.cli.warm_up"
        )
    return folder


def fingerprint(folder: Path) -> str:
    """Return the SHA-256 of the policy's weights, which identifies it."""
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
