"""Gap between the policy that the engines sample from and the trained policy, and the watch that ends a run for it.

p is the trainer's probability of a sampled token under the last weights sent to the engines; q is the engine's
probability when it sampled the token. Both divide logits by the temperature. Rounding to bfloat16 alone makes
|log q - log p| some 0.002 to 0.02 nats per token. A healthy gap shrinks with every weight synchronization.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.train.carriers import ENGINE, OLDER
from openrlhf_shear.train.sampling.engines import Engines
from openrlhf_shear.train.screen.outcome import EngineGapError

logger = init_logger(__name__)
STEPS = 3  # steps in a row with a large gap, each after a weight synchronization, before the search for a cause
_TIMES = 3.0  # a gap is large above this multiple of the first step's gap,
_LEAST, _MOST = 0.01, 0.1  # never below the first, always above the second (nats per token)
_PROBE = 128  # tokens that engines and policy score
_SAME, _OTHER = 1e-6, 1e-3  # nats, summed over the probe: most for equal weights, least for different weights
_CAUSES = "stale weights, adapters not merged"


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


class GapWatch:
    """Judge of every step's gap in synchronous training, where the engines have the trained weights.

    A gap is large above three times the first step's gap (at least 0.01, at most 0.1 nats per token). After three
    large gaps in a row the watch looks for the cause. It ends the run if it finds a cause, or if the gap is above
    `--vllm.max_gap`. Otherwise it warns, and searches again at twice that gap.
    """

    def __init__(self, args: Namespace, engines: Engines):
        self._args, self._engines = args, engines
        self._limit = 0.0 if args.train.async_enable else args.vllm.max_gap
        self._alarm: float | None = None
        self._forget()

    def _forget(self) -> None:
        self._steps = 0  # steps in a row with a large gap
        self._probe: list[int] = []  # tokens that engines and policy score
        self._engine_scores: torch.Tensor | None = None  # (engines, tokens), of this step
        # The scores of the engines and of the policy, for the last two steps.
        self._scores: list[tuple[torch.Tensor, torch.Tensor]] = []

    def sampled(self) -> None:
        """Get the engines' scores of the probe after a step's rollouts, while the engines are awake."""
        if self._probe:
            self._engine_scores = torch.tensor(self._engines.call("score", self._probe))

    def judge(self, gap: Gap, experiences: Sequence[Experience], policy) -> None:
        """Judge a step's gap, before its update.

        Args:
            policy: the trained policy (`GradedExperienceMaker.score`, `gap_without_adapters`).

        Raises:
            EngineGapError: the engines sample from another policy.
        """
        if not self._limit or not gap.by_engine:
            return
        size = gap.by_engine[gap.worst]
        if self._alarm is None:
            self._alarm = min(max(_TIMES * size, _LEAST), _MOST)
        if size <= min(self._alarm, self._limit):
            self._forget()
            return
        self._steps += 1
        if self._engine_scores is not None:
            self._scores = [*self._scores[-1:], (self._engine_scores, policy.score(self._probe))]
            self._engine_scores = None
        self._probe = self._probe or probe_of(experiences, self._args.data.max_len)
        if self._steps % STEPS:
            return
        seen = (
            f"engine {gap.worst} is {size:.3f} nats a token off the policy (at most {gap.largest:.2g}), "
            f"{self._steps} steps in a row"
        )
        cause = self._cause(gap, experiences, policy)
        if cause or size > self._limit:
            what = cause or f"engines sample from another policy, and it is none of: {_CAUSES}"
            raise EngineGapError(f"{what}; {seen} (--vllm.max_gap 0 goes on)")
        self._alarm = 2 * size
        logger.warning(
            f"{seen}; it is none of: {_CAUSES}; the next warning is at twice that, and --vllm.max_gap ends the run"
        )

    def _cause(self, gap: Gap, experiences: Sequence[Experience], policy) -> str:
        """Return the proven cause, or ""."""
        if self._args.ds.lora.rank > 0:
            base = policy.gap_without_adapters(experiences).by_engine[gap.worst]
            if base < gap.by_engine[gap.worst] / 2:
                return f"base model under LoRA: engine {gap.worst} is {base:.3f} off the policy without its adapters"
        if len(self._scores) < 2:
            return ""
        (engines, before), (engines_now, now) = self._scores  # of the last two steps
        same = [_distance(*pair) <= _SAME for pair in zip(engines, engines_now, strict=True)]
        if not any(same) or _distance(before, now) < _OTHER:
            return ""
        stale = ", ".join(str(number) for number, is_same in enumerate(same) if is_same)
        return f"stale weights: engine {stale} scores {len(self._probe)} tokens as a step ago, the policy does not"


def _distance(before: torch.Tensor, now: torch.Tensor) -> float:
    return (before - now).abs().sum().item()


def probe_of(experiences: Sequence[Experience], max_len: int) -> list[int]:
    """Return the first tokens of the longest response, repeated if it is short."""
    rows = [
        sequence[-mask.shape[0] :][mask.bool()]
        for experience in experiences
        for sequence, mask in zip(experience.sequences, experience.action_mask, strict=True)
    ]
    tokens = max(rows, key=len).tolist()
    size = min(_PROBE, max_len - 1)  # an engine samples a token after it
    return (tokens * size)[:size]
