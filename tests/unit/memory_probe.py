"""Run by `test_memory.py` in a process of its own: the peak memory of a long group, as JSON."""

import json

import torch

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import shear_weights

G, T, D = 8, 1500, 3584


def rollout(generator: torch.Generator, topics: torch.Tensor) -> torch.Tensor:
    """(T, d) bf16: tokens around a few topics, the next one on average every 100 tokens."""
    turns = torch.rand(T, generator=generator) < 0.01
    topic = torch.randint(len(topics), (T,), generator=generator)[turns.cumsum(0)]
    return (topics[topic] + 0.7 * torch.randn(T, D, generator=generator)).bfloat16()


def memory(what: str) -> int:
    """Bytes: "VmRSS" that are resident, "VmHWM" at most so far. (`ru_maxrss` counts those of the process that started
    this one too.)
    """
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(what))


generator = torch.Generator().manual_seed(0)
topics = torch.randn(40, D, generator=generator)
states = [rollout(generator, topics) for _ in range(G)]
shear_weights([h[:150] for h in states[:2]], [True, False])  # what a process loads once is not the search's
before = memory("VmRSS")
result = shear_weights(states, [i % 2 == 0 for i in range(G)], ShearConfig())
peak = memory("VmHWM")
print(json.dumps({"extra_bytes": peak - before, "opposed": result.opposed, "converged": result.converged}))
