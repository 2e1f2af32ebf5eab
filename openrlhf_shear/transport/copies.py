"""Copies between the CPU and CUDA that do not wait for the work that is queued there, or wait once for all of it."""

from collections.abc import Iterable

import torch


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a small CPU tensor on `device`. A copy to CUDA is from pinned memory, and nothing waits for it."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def to_cpu(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors on the CPU, after a single wait for a device."""
    there = list(tensors)
    copies = [tensor.to("cpu", non_blocking=True) for tensor in there]
    for device in {tensor.device for tensor in there if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return copies
