"""The gap between the policy that the engines sample from and the one that is trained: measured at every step, and the
end of a run whose engines are shown to sample from another policy.

p is the trainer's probability of a sampled token under the weights that were sent last, q the engine's when it sampled
it. Both divide logits by the temperature. In bfloat16 rounding alone makes |log q - log p| some 0.002 to 0.02 nats a
token.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.fork.engines import Engines
from openrlhf_shear.fork.outcome import EngineGapError

logger = init_logger(__name__)
STEPS = 3  # in a row, each after a weight synchronization, before anything is concluded
_TIMES = 3.0  # the first step's gap, from which on causes are looked for,
_LEAST, _MOST = 0.01, 0.1  # but never below, and always above, these (nats a token)
_SAME = 1e-6  # nats: scores of the same weights
_PROBE = 128  # tokens that are scored
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
    means: dict[int, float]  # of |log q - log p|, by engine
    largest: float  # |log q - log p| of a token

    @property
    def engine(self) -> int:
        """The engine with the largest mean."""
        return max(self.means, key=self.means.get)

    @property
    def mean(self) -> float:
        """Of |log q - log p|, of that engine."""
        return self.means[self.engine]

    def metrics(self) -> dict[str, float]:
        return {"vllm_kl": self.kl, "vllm_gap": self.mean, "vllm_gap_max": self.largest}


def measure(experiences: Sequence[Experience], engines: Sequence[torch.Tensor | None]) -> Gap | None:
    """None where no engine gave log-probs, or no response token has finite ones.

    Args:
        engines: by experience, the number of each row's engine, (B,); None for the first engine.
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
    means = {engine: gap[number == engine].abs().mean().item() for engine in number.unique().tolist()}
    return Gap(gap.mean().item(), means, gap.abs().max().item())


@dataclass(frozen=True)
class EngineFacts:
    """What an engine says of itself."""

    dtype: str  # of its model
    cache_kept: bool  # whether it refused to drop the prefix cache at the last synchronization
    sampled: frozenset[tuple[float, float, int]]  # temperature, top-p and top-k of all it sampled for training


class GapWatch:
    """Judges the gap of every step of synchronous training, where the engines have the weights that are trained.

    A gap above three times the first step's (at least 0.01, at most 0.1 nats a token) has causes looked for. The run
    ends after three such steps in a row if one is proved, or if the gap is above `--vllm.max_gap`.
    """

    def __init__(self, args: Namespace, engines: Engines):
        self._args, self._engines = args, engines
        self._limit = 0.0 if args.train.async_enable else args.vllm.max_gap
        self._alarm: float | None = None
        self._row = 0  # steps in a row above it
        self._probe: list[int] = []  # tokens that every engine scores
        self._scores: list[list[list[float]]] = []  # of the last two samplings, by engine
        self._moved = False  # whether weights changed between these

    def sampled(self) -> None:
        """After a step's rollouts, while the engines are awake."""
        if self._probe:
            self._scores = [*self._scores[-1:], self._engines.call("score", self._probe)]

    def updated(self, moved: bool) -> None:
        """After an update; `moved`: whether it changed a weight."""
        self._moved = moved

    def judge(self, gap: Gap, experiences: Sequence[Experience], unadapted: Callable[[], Gap]) -> None:
        """Before the update.

        Args:
            unadapted: the gap to the model without its adapters.

        Raises:
            EngineGapError: engines sample from another policy.
        """
        if not self._limit:
            return
        if self._alarm is None:
            self._alarm = min(max(_TIMES * gap.mean, _LEAST), _MOST)
        if gap.mean <= self._alarm:
            self._row, self._probe, self._scores = 0, [], []
            return
        self._row += 1
        self._probe = self._probe or _probe_of(experiences)
        if self._row % STEPS:
            return
        about = (
            f"engine {gap.engine} samples from another policy than the one that is trained: its log-probs are off by "
            f"{gap.mean:.3f} nats a token (at most {gap.largest:.1f}), in {self._row} steps in a row"
        )
        cause = self._cause(gap, unadapted)
        if cause or gap.mean > self._limit:
            raise EngineGapError(f"{about}; {cause or f'cause not found among: {_LOOKED_FOR}'} (--vllm.max_gap)")
        logger.error(f"{about}; cause not found among: {_LOOKED_FOR}; the run goes on below --vllm.max_gap")

    def _cause(self, gap: Gap, unadapted: Callable[[], Gap]) -> str:
        """What is proved; "" if nothing is."""
        if self._args.ds.lora.rank > 0 and (base := unadapted().means[gap.engine]) < gap.mean / 2:
            return (
                f"it serves the base model: from the model without adapters they are off by {base:.3f} (a merged "
                "adapter that is not the adapter)"
            )
        if stale := self._stale():
            return (
                f"stale weights: engine {stale} scored {len(self._probe)} tokens alike before and after a weight sync"
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
        """Engines that score the probe as they did before the last update moved weights."""
        if len(self._scores) < 2 or not self._moved:
            return ""
        pairs = zip(*map(torch.tensor, self._scores), strict=True)
        return _numbers((before - after).abs().max().item() <= _SAME for before, after in pairs)


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
