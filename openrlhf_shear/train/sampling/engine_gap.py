"""Gap between the policy that the engines sample from and the policy that is trained.

p is the trainer's probability of a sampled token under the last weights sent to the engines; q is the engine's
probability when it sampled the token. Both divide logits by the temperature. Rounding to bfloat16 alone makes
|log q - log p| some 0.002 to 0.02 nats per token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_shear.train.carriers import ENGINE, OLDER


def log_probs_mode(temperature: float, top_p: float) -> str | None:
    """Return the vLLM `logprobs_mode` whose log-probs compare with the trainer's; None if there is none.

    The trainer's are after the temperature, over the whole vocabulary.
    """
    if top_p == 1.0:
        return "processed_logprobs"  # after temperature and top-p; with top-p < 1 it would cover only the nucleus
    return "raw_logprobs" if temperature == 1.0 else None


@dataclass(frozen=True)
class Gap:
    """Gap of a step over its response tokens, in nats."""

    kl: float  # mean of log q - log p, an estimate of KL(q || p)
    mean: float  # mean of |log q - log p|
    largest: float  # largest |log q - log p| of a token
    by_engine: dict[int, float]  # `mean` per engine, without rollouts of older weights

    @property
    def worst(self) -> int:
        """Engine with the largest mean."""
        return max(self.by_engine, key=self.by_engine.get)

    def metrics(self) -> dict[str, float]:
        return {"vllm_kl": self.kl, "vllm_gap": self.mean, "vllm_gap_max": self.largest}


def measure(experiences: Sequence[Experience]) -> Gap | None:
    """Compare `rollout_log_probs` with `action_log_probs`, (B, A) each, in float64.

    Rollouts without an engine in `info` count as `OLDER`. Returns None if no response token has both log-probs.
    """
    signed, sizes, largest, counts, engines = [], [], [], [], []  # (B,) each, by experience
    for experience in experiences:
        if experience.rollout_log_probs is None:
            continue
        difference = experience.rollout_log_probs.double() - experience.action_log_probs.double()
        usable = experience.action_mask.bool() & difference.isfinite()
        gap = difference.where(usable, 0.0)
        signed.append(gap.sum(1))
        gap.abs_()
        sizes.append(gap.sum(1))
        largest.append(gap.amax(1))
        counts.append(usable.sum(1))
        engines.append(experience.info.get(ENGINE, torch.full((len(usable),), OLDER)).long().flatten())
    if not sum(int(count.sum()) for count in counts):
        return None
    signed, size, largest, count, engine = map(torch.cat, (signed, sizes, largest, counts, engines))
    tokens, by_engine = count.sum().item(), {}
    for number in set(engine[count > 0].tolist()) - {OLDER}:
        of_engine = engine == number
        by_engine[number] = (size[of_engine].sum() / count[of_engine].sum()).item()
    return Gap(signed.sum().item() / tokens, size.sum().item() / tokens, largest.max().item(), by_engine)
