"""Run by `test_memory.py` in a process of its own: the peak memory of a long group, as JSON."""

import json
import resource

import torch

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import shear_weights

G, T, D = 8, 1500, 3584


def rollout(generator: torch.Generator, topics: torch.Tensor) -> torch.Tensor:
    """(T, d) bf16: tokens around a few topics, the next one on average every 100 tokens."""
    turns = torch.rand(T, generator=generator) < 0.01
    topic = torch.randint(len(topics), (T,), generator=generator)[turns.cumsum(0)]
    return (topics[topic] + 0.7 * torch.randn(T, D, generator=generator)).bfloat16()


def resident() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


generator = torch.Generator().manual_seed(0)
topics = torch.randn(40, D, generator=generator)
states = [rollout(generator, topics) for _ in range(G)]
shear_weights([h[:150] for h in states[:2]], [True, False])  # what a process loads once is not the search's
before = resident()
result = shear_weights(states, [i % 2 == 0 for i in range(G)], ShearConfig())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"extra_bytes": peak - before, "opposed": result.opposed, "converged": result.converged}))
