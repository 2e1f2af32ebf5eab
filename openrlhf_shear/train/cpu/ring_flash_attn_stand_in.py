"""Stand-in for `ring_flash_attn` on machines without CUDA: the two functions that OpenRLHF imports.

A ring's ranks hold equal slices of a row of packed sequences. Each rank gathers all keys and values. Its queries attend
to the tokens of their sequence up to themselves. The mask, (tokens / ranks, tokens), is kept in memory.
"""

import importlib.machinery
import types

import torch

from openrlhf_shear.train import hooks
from openrlhf_shear.train.cpu.flash_attn_stand_in import all_gather

_mask = torch.zeros(0, 0, dtype=torch.bool)  # mask of the pass in progress: the tokens that each local query attends to


def install() -> None:
    """Make `import ring_flash_attn` find the functions below."""
    module = types.ModuleType("ring_flash_attn")
    module.__spec__ = importlib.machinery.ModuleSpec("ring_flash_attn", loader=None)
    for function in (substitute_hf_flash_attn, update_ring_flash_attn_params):
        setattr(module, function.__name__, function)
    hooks.RING_FLASH_ATTN.put(module)


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
