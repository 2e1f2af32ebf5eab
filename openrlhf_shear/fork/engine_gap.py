"""The gap between the policy that the engines sample from and the one that is trained: measured at every step, and the
end of a run whose engines are shown to sample from another policy.

p is the trainer's probability of a sampled token under the weights that were sent last, q the engine's when it sampled
it. Both divide logits by the temperature. In bfloat16 rounding alone makes |log q - log p| some 0.002 to 0.02 nats a
token.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.fork.engines import Engines
from openrlhf_shear.fork.outcome import EngineGapError

logger = init_logger(__name__)
STEPS = 3  # in a row, each after a weight synchronization, before anything is concluded
_TIMES = 3.0  # the first step's gap, from which on causes are looked for,
_LEAST, _MOST = 0.01, 0.1  # but never below, and always above, these (nats a token)
_SAME = 1e-6  # nats, sum over the probe: of the same weights
_PROBE = 128  # tokens that are scored
OLDER = -1  # in place of an engine's number: the rollout was drawn before the last weight synchronization
_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
_LOOKED_FOR = "stale weights, adapters that are not merged, sampling settings, a kept prefix cache, another dtype"


def log_probs_mode(temperature: float, top_p: float) -> str | None:
    """vLLM's `logprobs_mode` in which a log-prob is comparable with the trainer's, which has the temperature in it and
    is over the whole vocabulary; None where there is none.
    """
    if top_p == 1.0:
        return "processed_logprobs"  # after the temperature; with top-p it would be over the nucleus alone
    return "raw_logprobs" if temperature == 1.0 else None


@dataclass(frozen=True)
class Gap:
    """Of one step, over response tokens, in nats."""

    kl: float  # mean of log q - log p, an estimate of KL(q || p)
    mean: float  # of |log q - log p|
    largest: float  # |log q - log p| of a token
    by_engine: dict[int, float]  # the mean of each, without rollouts of older weights

    @property
    def worst(self) -> int:
        """The engine with the largest mean."""
        return max(self.by_engine, key=self.by_engine.get)

    def metrics(self) -> dict[str, float]:
        return {"vllm_kl": self.kl, "vllm_gap": self.mean, "vllm_gap_max": self.largest}


def measure(experiences: Sequence[Experience], engines: Sequence[torch.Tensor | None]) -> Gap | None:
    """None where no engine gave log-probs, or no response token has finite ones.

    Args:
        engines: by experience, the number of each row's engine or `OLDER`, (B,); None for the first engine.
    """
    gaps, numbers = [], []
    for experience, rows in zip(experiences, engines, strict=True):
        if experience.rollout_log_probs is None:
            continue
        difference = experience.rollout_log_probs.double() - experience.action_log_probs.double()
        kept = experience.action_mask.bool() & difference.isfinite()
        rows = torch.zeros(len(kept)) if rows is None else rows
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
    cache_kept: bool  # whether it refused to drop the prefix cache at the last synchronization
    sampled: frozenset[tuple[float, float, int]]  # temperature, top-p and top-k of all it sampled for training


class Policy(Protocol):
    """The policy that is trained, before its update."""

    def score(self, token_ids: list[int]) -> torch.Tensor:
        """Log-probs of these tokens but the first, each after those before it."""

    def gap_without_adapters(self) -> Gap:
        """The gap between the engines and the model without LoRA's adapters."""


class GapWatch:
    """Judges the gap of every step of synchronous training, where the engines have the weights that are trained.

    A gap above three times the first step's (at least 0.01, at most 0.1 nats a token) has causes looked for. The run
    ends after three such steps in a row if one is proved, or if the gap is above `--vllm.max_gap`.
    """

    def __init__(self, args: Namespace, engines: Engines):
        self._args, self._engines = args, engines
        self._limit = 0.0 if args.train.async_enable else args.vllm.max_gap
        self._alarm: float | None = None
        self._steps = 0  # in a row, above it
        self._probe: list[int] = []  # tokens that engines and policy score
        self._asked: list[torch.Tensor] = []  # the engines' scores of the last two samplings, (engines, tokens) each
        self._wanted: list[torch.Tensor] = []  # the policy's of these steps, (tokens,) each

    def sampled(self) -> None:
        """After a step's rollouts, while the engines are awake."""
        if self._probe:
            self._asked = [*self._asked[-1:], torch.tensor(self._engines.call("score", self._probe))]

    def judge(self, gap: Gap, experiences: Sequence[Experience], policy: Policy) -> None:
        """Before the update.

        Raises:
            EngineGapError: engines sample from another policy.
        """
        if not self._limit or not gap.by_engine:
            return
        size = gap.by_engine[gap.worst]
        if self._alarm is None:
            self._alarm = min(max(_TIMES * size, _LEAST), _MOST)
        if size <= self._alarm:
            self._steps, self._probe, self._asked, self._wanted = 0, [], [], []
            return
        self._steps += 1
        if self._asked:
            self._wanted = [*self._wanted[-1:], policy.score(self._probe)]
        self._probe = self._probe or _probe_of(experiences)
        if self._steps % STEPS:
            return
        about = (
            f"engine {gap.worst} samples from another policy than the one that is trained: its log-probs are off by "
            f"{size:.3f} nats a token (at most {gap.largest:.1f}), in {self._steps} steps in a row"
        )
        cause = self._cause(gap, policy)
        if cause or size > self._limit:
            raise EngineGapError(f"{about}; {cause or f'cause not found among: {_LOOKED_FOR}'} (--vllm.max_gap)")
        logger.error(f"{about}; cause not found among: {_LOOKED_FOR}; the run goes on below --vllm.max_gap")

    def _cause(self, gap: Gap, policy: Policy) -> str:
        """What is proved; "" if nothing is."""
        if self._args.ds.lora.rank > 0:
            base = policy.gap_without_adapters().by_engine[gap.worst]
            if base < gap.by_engine[gap.worst] / 2:
                return (
                    f"it serves the base model: from the model without adapters they are off by {base:.3f} (a merged "
                    "adapter that is not the adapter)"
                )
        if stale := self._stale():
            return (
                f"stale weights: engine {stale} scored {len(self._probe)} tokens alike before and after a weight sync "
                "that brought other weights"
            )
        wanted, facts = self._args.rollout, self._engines.call("facts")
        ours = (wanted.temperature, wanted.top_p)
        for number, fact in enumerate(facts):
            if others := sorted({had for had in fact.sampled if had[:2] != ours or had[2] > 0}):
                return f"engine {number} sampled with (temperature, top-p, top-k) {others[0]}, not {(*ours, -1)}"
        if kept := _numbers(fact.cache_kept for fact in facts):
            return f"engine {kept} kept its prefix cache, of older weights, at the last weight sync"
        dtype = _DTYPES[self._args.ds.param_dtype]
        if other := _numbers(fact.dtype != dtype for fact in facts):
            return f"engine {other} runs in another dtype than {dtype}, that of --ds.param_dtype"
        return ""

    def _stale(self) -> str:
        """Engines that score the probe as they did a step before, while the policy does not."""
        if len(self._asked) < 2 or _same(*self._wanted):
            return ""
        return _numbers(_same(before, after) for before, after in zip(*self._asked, strict=True))


def _same(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether they are scores of the same weights."""
    return (before - after).abs().sum().item() <= _SAME


def _probe_of(experiences: Sequence[Experience]) -> list[int]:
    """The first tokens of the longest response."""
    rows = [
        sequence[-mask.shape[0] :][mask.bool()]
        for experience in experiences
        for sequence, mask in zip(experience.sequences, experience.action_mask, strict=True)
    ]
    return max(rows, key=len)[:_PROBE].tolist()


def _numbers(true) -> str:
    """
    >>> _numbers([True, False, True])
    '0, 2'
    """
    return ", ".join(str(number) for number, holds in enumerate(true) if holds)
