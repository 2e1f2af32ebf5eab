"""What is caught in a forward pass: hidden states, that is what enters the LM head, and entropies.

Legend: B sequences, S positions of the padded batch, A columns of the action mask, d hidden size, T_i response tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, so that no dropout reaches what is read; afterwards each of its modules has the
    mode it had.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def captured_lm_head_input(model: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """A list that gets what enters the LM head of a causal LM, one detached (B, S, d) a forward pass: the states after
    the final norm, for every model family, with LoRA, ZeRO-3 and packing. Raises ValueError: there is no LM head.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(f"{type(model).__name__} has no output embeddings, so there is no LM head to read states from")
    captured: list[torch.Tensor] = []
    handle = head.register_forward_pre_hook(lambda module, inputs: captured.append(inputs[0].detach()))
    try:
        yield captured
    finally:
        handle.remove()


@contextmanager
def captured_backbone_output(model: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """As `captured_lm_head_input`, of a causal LM of transformers whose head's weight is multiplied in without the head
    being called, as fused heads do (TRL's): what its backbone gives, which is what enters the head.
    """
    captured: list[torch.Tensor] = []
    handle = model.base_model.register_forward_hook(lambda *call: captured.append(call[2].last_hidden_state.detach()))
    try:
        yield captured
    finally:
        handle.remove()


def response_states(
    hidden: torch.Tensor, attention_mask: torch.Tensor, action_mask: torch.Tensor, packed: bool
) -> list[torch.Tensor]:
    """The hidden states of each sequence's response tokens: B tensors (T_i, d) with the dtype and device of `hidden`.

    Log-probs and the action mask are shifted by one: column j of the mask speaks of the token at sequence position
    S - A + j, and the state taken is the one *at* that position. Positions between two responses of a multi-turn
    rollout have mask 0 and are dropped.

    Example: S = 5, A = 4, tokens [p, p, r, r, r], action mask [0, 1, 1, 1] -> positions 2, 3, 4.

    Args:
        hidden: (B, S, d), or (1, tokens, d) when `packed`: the attended positions of all sequences in a row.
        attention_mask: (B, S), 1 where a token is; left or right padding.
        action_mask: (B, A), A <= S, 1 at the response tokens.

    Raises ValueError: `hidden` does not fit the masks, or a response token lies on padding.
    """
    batch, seqlen = attention_mask.shape
    tokens = int(attention_mask.sum()) if packed else seqlen
    expected = (1, tokens) if packed else (batch, seqlen)
    if hidden.ndim != 3 or tuple(hidden.shape[:2]) != expected:
        raise ValueError(
            f"hidden states of shape {tuple(hidden.shape)} do not fit the attention mask {(batch, seqlen)}: "
            f"expected {(*expected, 'd')}; was the LM head given only some of the positions?"
        )
    offset = seqlen - action_mask.shape[1]
    attended = attention_mask.to(hidden.device).bool()
    is_response = torch.zeros_like(attended)
    is_response[:, offset:] = action_mask.to(hidden.device).bool()
    if bool((is_response & ~attended).any()):
        raise ValueError("the action mask marks positions that the attention mask calls padding")
    lengths = is_response.sum(-1).tolist()
    chosen = hidden[0][is_response[attended]] if packed else hidden[is_response]
    return list(chosen.split(lengths))


@contextmanager
def captured_entropies(actor: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """While open, the actor computes entropies too; what its callers get stays the log-probs.

    Yields a list that gets one detached (B, S - 1) a forward pass: nats, of the distribution (at the rollout's
    temperature) of the next token.

    Args:
        actor: OpenRLHF's `Actor`, which with `return_output` and `return_entropy` gives (log-probs, output).
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
