"""Capture of hidden states (the input of the LM head) and entropies in a forward pass; log-probs from such states.

Legend: B sequences, S positions of the padded batch, A columns of the action mask, d hidden size, T_i response tokens.
Of an LM head: T tokens, V tokens of the vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch

from openrlhf_shear.transport.copies import to_device

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


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, so that states are read without dropout; restore each module's mode after."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        if modes[model]:
            model.train()  # a transformers model with kernels from the hub changes them with the mode
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def captured_lm_head_input(model: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Yield a list to which each forward pass adds the input of a causal LM's head, detached: (B, S, d).

    These are the states after the final norm, for every model family, with LoRA, ZeRO-3 and packing.

    Raises ValueError: the model has no LM head.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(f"{type(model).__name__} has no output embeddings, so there is no LM head to read states from")
    captured: list[torch.Tensor] = []
    with head.register_forward_pre_hook(lambda module, inputs: captured.append(inputs[0].detach())):
        yield captured


@contextmanager
def captured_backbone_output(model: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Yield a list as `captured_lm_head_input` does, filled from the output of the backbone of a transformers model.

    The backbone's output is the head's input. This also works with fused heads (TRL's), which multiply by the head's
    weight without calling the head.
    """
    captured: list[torch.Tensor] = []
    with model.base_model.register_forward_hook(lambda *call: captured.append(call[2].last_hidden_state.detach())):
        yield captured


def response_states(
    hidden: torch.Tensor, attention_mask: torch.Tensor, action_mask: torch.Tensor, packed: bool
) -> list[torch.Tensor]:
    """Return the hidden states of each sequence's response tokens: B tensors (T_i, d), dtype and device of `hidden`.

    Log-probs and the action mask are shifted by one. Column j of the mask is about the token at sequence position
    S - A + j, whose state is the state *at* that position. Positions between two responses of a multi-turn rollout
    have mask 0 and are dropped.

    Example: S = 5, A = 4, tokens [p, p, r, r, r], action mask [0, 1, 1, 1] -> positions 2, 3, 4.

    Args:
        hidden: (B, S, d), or (1, tokens, d) when `packed`: the attended positions of all sequences, concatenated.
        attention_mask: (B, S), 1 at tokens, 0 at padding, which may be left or right.
        action_mask: (B, A), A <= S, 1 at the response tokens.

    Raises ValueError: `hidden` does not match the masks, or the action mask marks padding.
    """
    batch, seqlen = attention_mask.shape
    tokens = int(attention_mask.sum()) if packed else seqlen
    expected = (1, tokens) if packed else (batch, seqlen)
    if hidden.ndim != 3 or tuple(hidden.shape[:2]) != expected:
        raise ValueError(
            f"hidden states of shape {tuple(hidden.shape)} do not fit the attention mask {(batch, seqlen)}: "
            f"expected {(*expected, 'd')}; was the LM head given only some of the positions?"
        )
    # On the CPU, where OpenRLHF's masks are: on a device, each shape that depends on a mask would be a wait.
    attended, actions = attention_mask.cpu().bool(), action_mask.cpu().bool()
    is_response = torch.nn.functional.pad(actions, (seqlen - actions.shape[1], 0))
    if (is_response & ~attended).any():
        raise ValueError("the action mask marks positions that the attention mask calls padding")
    positions = torch.nonzero(is_response[attended] if packed else is_response.flatten())[:, 0]
    chosen = hidden.flatten(0, 1).index_select(0, to_device(positions, hidden.device))
    return list(chosen.split(is_response.sum(-1).tolist()))


def one_earlier(action_mask: torch.Tensor) -> torch.Tensor:
    """Return the mask with which `response_states` returns source states, from which the tokens were drawn.

    Every response has a token of its prompt before it.

    Example: the action mask [0, 1, 1, 1] of 5 positions -> [0, 1, 1, 1, 0], positions 1, 2, 3.
    """
    return torch.nn.functional.pad(action_mask, (0, 1))


def turn_numbers(mask: torch.Tensor) -> torch.Tensor:
    """Return the turn of each response token, from 0: (T,) int64, where `mask` (A,) bool marks T tokens.

    A turn is a run of response tokens; other tokens, such as a tool's answer, stand between turns.

    >>> turn_numbers(torch.tensor([False, True, True, False, True])).tolist()
    [0, 0, 1]
    """
    before = torch.nn.functional.pad(mask, (1, 0))[:-1]
    return ((mask & ~before).cumsum(0) - 1)[mask]


@contextmanager
def captured_entropies(actor: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Make the actor compute entropies too, while the context is open; its callers still get the log-probs alone.

    Yields a list to which each forward pass adds (B, S - 1) entropies, detached, in nats: those of the next token's
    distribution at the rollout's temperature.

    Args:
        actor: OpenRLHF's `Actor`, which returns (log-probs, output) with `return_output` and `return_entropy`.
    """
    captured: list[torch.Tensor] = []

    def ask(module, args, kwargs):
        return args, kwargs | {"return_output": True, "return_entropy": True}

    def take(module, args, output):
        log_probs, others = output
        captured.append(others.entropy.detach())
        return log_probs

    with actor.register_forward_pre_hook(ask, with_kwargs=True), actor.register_forward_hook(take):
        yield captured
