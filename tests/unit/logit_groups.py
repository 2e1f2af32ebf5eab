"""Groups with source states and an LM head, and their distributions in float64, entry by entry.

The rules multiply in float32, as the policy does. A logit is a sum of `WIDTH` products of numbers near 1, so it is off
by some 1e-6, and so are probabilities.
"""

import math

import numpy as np
import torch

from openrlhf_shear.credit import RolloutGroup
from openrlhf_shear.credit.logits import LMHead

NAN = float("nan")
VOCABULARY, WIDTH = 13, 5
TEMPERATURE = 1.3


def logit_group(lengths, rewards, seed=0, head=True, dtype=torch.float32) -> RolloutGroup:
    """Random states and ids; log-probs are those of the distributions; a reward above 0.5 is correct."""
    rng = np.random.default_rng(seed)
    weight = torch.tensor(rng.normal(size=(VOCABULARY, WIDTH)), dtype=dtype)
    states = tuple(torch.tensor(rng.normal(size=(n, WIDTH)) + 0.5, dtype=dtype) for n in lengths)
    ids = tuple(torch.tensor(rng.integers(0, VOCABULARY - 3, size=n), dtype=torch.int64) for n in lengths)
    rewards = tuple(map(float, rewards))
    made = RolloutGroup(
        0,
        rewards,
        tuple(None if math.isnan(reward) else reward > 0.5 for reward in rewards),
        tuple(lengths),
        source_states=states,
        token_ids=ids,
        lm_head=LMHead(weight, TEMPERATURE),
    )
    logs = tuple(
        torch.tensor([math.log(probabilities(made, i, t)[int(ids[i][t])]) for t in range(n)])
        for i, n in enumerate(lengths)
    )
    return RolloutGroup(**{**vars(made), "log_probs": logs})


def random_group(seed: int) -> RolloutGroup:
    """4 to 8 rollouts of 0 to 12 tokens, of both outcomes; some are empty, some have one token or no reward."""
    rng = np.random.default_rng(seed)
    lengths = [5, 9, *(int(rng.choice([0, 1, rng.integers(2, 13)])) for _ in range(rng.integers(2, 7)))]
    rewards = [1.0, 0.0, *(rng.choice([1.0, 0.0, NAN], p=[0.4, 0.4, 0.2]) for _ in lengths[2:])]
    return logit_group(lengths, rewards, seed)


def probabilities(group: RolloutGroup, i: int, t: int) -> list[float]:
    """The distribution from which token t of rollout i was drawn: V numbers."""
    state, weight = group.source_states[i][t].tolist(), group.lm_head.weight.tolist()
    exps = [math.exp(math.fsum(a * b for a, b in zip(state, row, strict=True)) / TEMPERATURE) for row in weight]
    return [value / math.fsum(exps) for value in exps]


def in_chunks(monkeypatch, rows: int) -> None:
    """Make the LM head give the log-probs of this many tokens at a time."""
    monkeypatch.setattr("openrlhf_shear.credit.logits.CHUNK_BYTES", 4 * VOCABULARY * rows)
