"""The gap between the policy that the engines sample from and the policy that is trained.

p is the trainer's probability of a sampled token under the weights that the engines got last, q the engine's when it
sampled the token. Both divide logits by the temperature. Rounding to bfloat16 alone makes |log q - log p| some 0.002 to
0.02 nats a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

ENGINE = "engine"  # in a rollout's info, until log-probs are compared: the number of the engine that sampled it
OLDER = -1  # in place of that number: sampled before the last weight synchronization


def log_probs_mode(temperature: float, top_p: float) -> str | None:
    """vLLM's `logprobs_mode` whose log-probs mean what the trainer's do: after the temperature, of the whole
    vocabulary. None where vLLM has no such mode.
    """
    if top_p == 1.0:
        return "processed_logprobs"  # after temperature and top-p, which would leave the nucleus alone
    return "raw_logprobs" if temperature == 1.0 else None


@dataclass(frozen=True)
class Gap:
    """Of one step, over response tokens, in nats."""

    kl: float  # mean of log q - log p, an estimate of KL(q || p)
    mean: float  # of |log q - log p|
    largest: float  # |log q - log p| of a token
    by_engine: dict[int, float]  # the mean of each engine's rollouts, without those of older weights

    @property
    def worst(self) -> int:
        """The engine with the largest mean."""
        return max(self.by_engine, key=self.by_engine.get)

    def metrics(self) -> dict[str, float]:
        return {"vllm_kl": self.kl, "vllm_gap": self.mean, "vllm_gap_max": self.largest}


def measure(experiences: Sequence[Experience]) -> Gap | None:
    """Compare `rollout_log_probs` with `action_log_probs`, (B, A) each, in float64.

    Rollouts whose engine `info` does not name count as `OLDER`. None where no response token has both log-probs.
    """
    gaps, numbers = [], []
    for experience in experiences:
        if experience.rollout_log_probs is None:
            continue
        difference = experience.rollout_log_probs.double() - experience.action_log_probs.double()
        kept = experience.action_mask.bool() & difference.isfinite()
        rows = experience.info.get(ENGINE, torch.full((len(kept),), OLDER))
        gaps.append(difference[kept])
        numbers.append(rows.long().flatten()[:, None].expand_as(kept)[kept])
    if not sum(map(len, gaps)):
        return None
    gap, number = torch.cat(gaps), torch.cat(numbers)
    sizes = gap.abs()
    by_engine = {engine: sizes[number == engine].mean().item() for engine in number.unique().tolist()}
    by_engine.pop(OLDER, None)
    return Gap(gap.mean().item(), sizes.mean().item(), sizes.max().item(), by_engine)


@dataclass(frozen=True)
class EngineFacts:
    """What an engine says of itself."""

    dtype: str  # of its model
    cache_kept: bool  # whether it refused to drop its prefix cache at the last weight synchronization
    sampled: frozenset[tuple[float, float, int]]  # temperature, top-p and top-k of all it sampled for training
