"""Stand-in for `flash_attn` on machines without CUDA: the helpers that OpenRLHF imports, and no attention kernel."""

import importlib.machinery
import sys
import types

import torch

from openrlhf_shear.train import hooks


def install() -> None:
    """Make `import flash_attn` find the helpers below, unless `flash_attn` is imported already."""
    if "flash_attn" in sys.modules:
        return
    contents = {
        "flash_attn.bert_padding": (unpad_input, pad_input, index_first_axis, rearrange),
        "flash_attn.utils.distributed": (all_gather,),
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


def rearrange(tensor: torch.Tensor, pattern: str, **sizes) -> torch.Tensor:
    import einops

    return einops.rearrange(tensor, pattern, **sizes)


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
