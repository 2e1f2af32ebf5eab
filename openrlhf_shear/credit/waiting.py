"""Memory for the hidden states of groups that wait for their rule."""

import logging
from collections.abc import Callable

import torch

from openrlhf_shear.config.spec import WAITING_BYTES
from openrlhf_shear.transport.tiles import free_bytes

logger = logging.getLogger(__name__)


def spare_bytes(device: torch.device) -> int:
    """Return the bytes of a CUDA device that are free, less the most that a forward pass has needed for a moment."""
    moment = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    return free_bytes(device) - moment


def waiting_bytes(
    asked: float | None, device: torch.device, spare: Callable[[torch.device], int] = spare_bytes
) -> float:
    """Return the limit, in bytes, on the states of waiting groups on `device`.

    `asked` is `SearchConfig.max_waiting_bytes`. Where it is None, half of the spare memory of a CUDA device may hold
    waiting groups: the other half is for the search and its copy of a group.

    Args:
        spare: returns the device's spare memory.

    >>> waiting_bytes(None, torch.device("cuda"), lambda device: 60 * 2**30) // 2**30
    30
    """
    if asked is not None:
        return asked
    if device.type != "cuda":
        return WAITING_BYTES
    there = spare(device)
    chosen = max(0, there // 2)
    logger.info("waiting groups: up to %.3g GiB of the %.3g GiB to spare on %s", chosen / 2**30, there / 2**30, device)
    return chosen
