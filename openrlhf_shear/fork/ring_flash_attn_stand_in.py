"""A `ring_flash_attn` for machines without CUDA: the two functions of it that OpenRLHF imports.

A ring's ranks hold equal slices of one row of packed sequences. Each gathers the keys and values of all, and its own
queries attend to those of their sequence up to themselves; the mask, of tokens / ranks times tokens, is kept whole.
"""

import importlib.machinery
import types

import torch

from openrlhf_shear.fork import hooks
from openrlhf_shear.fork.flash_attn_stand_in import all_gather

_mask = torch.zeros(0, 0, dtype=torch.bool)  # of the pass that is under way: whom each query here attends to


def install() -> None:
    """Let `import ring_flash_attn` find the functions below."""
    module = types.ModuleType("ring_flash_attn")
    module.__spec__ = importlib.machinery.ModuleSpec("ring_flash_attn", loader=None)
    for function in (substitute_hf_flash_attn, update_ring_flash_attn_params):
        setattr(module, function.__name__, function)
    hooks.RING_FLASH_ATTN.put(module)


def substitute_hf_flash_attn(process_group: torch.distributed.ProcessGroup, heads_k_stride: int) -> None:
    """From now on, transformers' sdpa attention is that of the whole ring; all heads at once, whatever the stride."""
    alone = hooks.RING_ATTENTION.get()

    def attention(module, query, key, value, attention_mask, sliding_window=None, **kwargs):
        if sliding_window is not None and sliding_window < _mask.shape[1]:
            raise NotImplementedError(f"ring attention on the CPU knows no sliding window (of {sliding_window} tokens)")
        key, value = (all_gather(part.transpose(0, 2), process_group).transpose(0, 2) for part in (key, value))
        return alone(module, query, key, value, _mask, **kwargs)  # (1, heads, tokens, d) each

    hooks.RING_ATTENTION.put(attention)


def update_ring_flash_attn_params(cu_seqlens: torch.Tensor, process_group: torch.distributed.ProcessGroup) -> None:
    """The next pass is of sequences that end at cu_seqlens[1:], of tokens in all that the ring divides."""
    global _mask
    position = torch.arange(int(cu_seqlens[-1]))
    sequence = torch.searchsorted(cu_seqlens, position, right=True)
    causal = (sequence[:, None] == sequence) & (position[:, None] >= position)
    _mask = causal.chunk(process_group.size())[process_group.rank()]
