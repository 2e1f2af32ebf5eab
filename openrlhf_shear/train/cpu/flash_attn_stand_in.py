"""Stand-ins for `flash_attn` and `ring_flash_attn` on machines without CUDA: the functions that OpenRLHF imports.

A ring's ranks hold equal slices of a row of packed sequences. Each rank gathers all keys and values. Its queries attend
to the tokens of their sequence up to themselves. The mask, (tokens / ranks, tokens), is kept in memory.
"""

import importlib.machinery
import sys
import types

import torch
from einops import rearrange

from openrlhf_shear.train import hooks

_mask = torch.zeros(0, 0, dtype=torch.bool)  # mask of the pass in progress: the tokens that each local query attends to


def install() -> None:
    """Make both imports find the functions below, unless `flash_attn` is imported already."""
    if "flash_attn" in sys.modules:
        return
    contents = {
        "flash_attn.bert_padding": (unpad_input, pad_input, index_first_axis, rearrange),
        "flash_attn.utils.distributed": (all_gather,),
        "ring_flash_attn": (substitute_hf_flash_attn, update_ring_flash_attn_params),
    }
    for name, patch in hooks.FLASH_ATTN.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None)
        if name not in contents:
            module.__path__ = []  # a package
        for function in contents.get(name, ()):
            setattr(module, function.__name__, function)
        patch.put(module)


def unpad_input(tensor: torch.Tensor, attention_mask: torch.Tensor):
    """Return the attended positions (tokens, ...), their indices, cumulative lengths, longest length, lengths."""
    lengths = attention_mask.sum(-1, dtype=torch.int32)
    indices = attention_mask.flatten().nonzero().flatten()
    cumulative = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return tensor.flatten(0, 1)[indices], indices, cumulative, int(lengths.max()), lengths


def pad_input(tokens: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """Undo `unpad_input`: (tokens, ...) -> (B, S, ...), with zeros elsewhere."""
    padded = tokens.new_zeros((batch * seqlen, *tokens.shape[1:]))
    return padded.index_copy(0, indices, tokens).unflatten(0, (batch, seqlen))


def index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return tensor[indices]


def all_gather(tensor: torch.Tensor, group: torch.distributed.ProcessGroup) -> torch.Tensor:
    """Join (n, ...) of each of R ranks to (R n, ...); a part's gradient is the sum of all ranks' gradients of it."""
    return _AllGather.apply(tensor, group)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, group):
        ctx.group = group
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(group.size())]
        torch.distributed.all_gather(parts, tensor.contiguous(), group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total, group=ctx.group)
        return total.chunk(ctx.group.size())[ctx.group.rank()], None


def substitute_hf_flash_attn(process_group: torch.distributed.ProcessGroup, heads_k_stride: int) -> None:
    """Replace transformers' sdpa attention by attention over the whole ring, all heads at once, whatever the stride."""
    alone = hooks.RING_ATTENTION.get()

    def attention(module, query, key, value, attention_mask, sliding_window=None, **kwargs):
        if sliding_window is not None and sliding_window < _mask.shape[1]:
            raise NotImplementedError(f"ring attention on the CPU has no sliding window (of {sliding_window} tokens)")
        key, value = (all_gather(part.transpose(0, 2), process_group).transpose(0, 2) for part in (key, value))
        return alone(module, query, key, value, _mask, **kwargs)  # (1, heads, tokens, d) each

    hooks.RING_ATTENTION.put(attention)


def update_ring_flash_attn_params(cu_seqlens: torch.Tensor, process_group: torch.distributed.ProcessGroup) -> None:
    """Prepare the mask of a pass over sequences that end at cu_seqlens[1:].

    The ring's size must divide the total number of tokens.
    """
    global _mask
    position = torch.arange(int(cu_seqlens[-1]))
    sequence = torch.searchsorted(cu_seqlens, position, right=True)
    causal = (sequence[:, None] == sequence) & (position[:, None] >= position)
    _mask = causal.chunk(process_group.size())[process_group.rank()]
