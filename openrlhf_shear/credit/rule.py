"""What a credit rule is: pure functions from a rollout's advantage to token advantages (docs/credit-rules.md)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch

from openrlhf_shear.config import SearchConfig
from openrlhf_shear.credit.evidence import GroupEvidence

# what a `CreditRule` can be given
NEEDS = ("hidden_states", "log_probs", "entropies", "prm_scores", "token_ids", "token_texts")
UPDATE_NEEDS = ("entropies",)  # and an `UpdateRule`


@dataclass(frozen=True)
class StepScores:
    """What a process reward model says of one rollout, cut into steps (`credit.prm.steps`); K of them are scored."""

    ends: torch.Tensor  # (K,) int64, ascending: the response token that ends step k, from 0
    scores: torch.Tensor  # (K,) float32: the probability that step k is right, in [0, 1]
    steps: int  # how many the rollout has; more than K where it is too long for the model, which saw the first K

    @classmethod
    def of(cls, ends: Sequence[int], scores: Sequence[float]) -> Self:
        """From the ends of all steps and the scores of the first so many of them, which may be none."""
        known = torch.tensor(ends[: len(scores)], dtype=torch.int64)
        return cls(known, torch.tensor(scores, dtype=torch.float32), len(ends))


@dataclass(frozen=True)
class RolloutGroup:
    """G rollouts of one prompt. Tuples are by rollout, T_i is the number of response tokens of rollout i.

    What the rule does not need is None. Hidden states are float32 or bfloat16: what enters the LM head at the token's
    own position. Log-probs are float32 on the CPU, of the sampled tokens; entropies float32 [nats], of the
    distribution each token was drawn from, over the whole vocabulary; scores on the CPU.
    """

    number: int  # which group of the step this is, from 0; for messages
    rewards: tuple[float, ...]  # scores, before any length penalty; NaN where a reward failed
    correct: tuple[bool | None, ...]  # a score at or above `--credit.correct_threshold`; None where a reward failed
    lengths: tuple[int, ...]  # T_i
    hidden_states: tuple[torch.Tensor, ...] | None = None  # (T_i, d) each
    log_probs: tuple[torch.Tensor, ...] | None = None  # (T_i,) each
    entropies: tuple[torch.Tensor, ...] | None = None  # (T_i,) each
    prm_scores: tuple[StepScores, ...] | None = None  # of runs with `--prm.*`
    token_ids: tuple[torch.Tensor, ...] | None = None  # (T_i,) int64 each, on the CPU
    token_texts: tuple[tuple[str, ...], ...] | None = None  # T_i each, special tokens too; joined they are the response
    step: int = 1  # of the training, from 1
    parts: tuple[object, ...] | None = None  # in order, what `CreditRule.part` gave of this group on other ranks


CREDIT_TENSORS = ("weights", "negative_weights", "advantages")


class _HasTensors:
    def tensors(self) -> dict[str, Sequence[torch.Tensor]]:
        """Those of `CREDIT_TENSORS` that the rule gave, by name."""
        given = {name: getattr(self, name) for name in CREDIT_TENSORS}
        return {name: tensors for name, tensors in given.items() if tensors is not None}


@dataclass(frozen=True)
class Credit(_HasTensors):
    """What a rule says of a group: weights, by which a token's advantage is multiplied, or advantages where its
    `makes_advantages` says so. Each of them is G tensors (T_i,), finite, on any device.
    """

    weights: Sequence[torch.Tensor] | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # of this group; a step's means are logged as `RULE/NAME`
    negative_weights: Sequence[torch.Tensor] | None = None  # for tokens of negative advantage, where these differ
    advantages: Sequence[torch.Tensor] | None = None  # in place of OpenRLHF's
    details: object = None  # whatever the rule's `evidence` is made of; it stays on the actor


@dataclass(frozen=True)
class GroupCredit(_HasTensors):
    """A group's credit as it leaves the actor; tensors are (T_i,) float32 on the CPU."""

    rollouts: tuple[int, ...]  # their index within the step
    rewards: tuple[float, ...]
    correct: tuple[bool | None, ...]
    metrics: dict[str, float]
    seconds: float  # of the rule, without its evidence, which is asked for on few steps
    weights: tuple[torch.Tensor, ...] | None = None
    negative_weights: tuple[torch.Tensor, ...] | None = None
    advantages: tuple[torch.Tensor, ...] | None = None
    evidence: GroupEvidence | None = None
    evidence_seconds: float = 0.0

    def __getstate__(self) -> dict:
        """Of each kind of tensors one array: pickling many small tensors takes longer than some rules do."""
        joined = {name: torch.cat(list(tensors)).numpy() for name, tensors in self.tensors().items()}
        return vars(self) | joined | {"lengths": [len(values) for values in next(iter(self.tensors().values()), ())]}

    def __setstate__(self, state: dict) -> None:
        lengths = state.pop("lengths")
        for name in CREDIT_TENSORS:
            if state[name] is not None:
                state[name] = torch.tensor(state[name]).split(lengths)
        vars(self).update(state)


class CreditRule(ABC):
    """A rule that acts while experience is made, on the policy actor and its device, and once in the driver, to find
    mistakes early. One that `makes_advantages` in place of weights for OpenRLHF's has neither a KL reward nor a length
    penalty in them, which the command line refuses.
    """

    name: str = "rule"  # before the slash of its metrics, and in messages
    needs: frozenset[str] = frozenset()  # of `NEEDS`; hidden states cost a group's memory, PRM scores another model
    search: SearchConfig = SearchConfig()  # of `shear_weights`; set from the command line once the rule is made
    makes_advantages: bool = False
    splits: bool = False  # has `part`, so that several ranks can share a large group

    @abstractmethod
    def credit(self, group: RolloutGroup) -> Credit:
        """The weights of one group. Must not change its arguments, and must give the same for the same group."""

    def work(self, lengths: Sequence[int], correct: Sequence[bool | None]) -> float:
        """How much there is to do for a group of these T_i and outcomes, in any unit: ranks share it evenly. Of a rule
        that reads hidden states the pairs of tokens with opposite outcomes; 0, which is never moved, of any other."""
        if "hidden_states" not in self.needs:
            return 0.0
        sides = (
            sum(n for n, is_right in zip(lengths, correct, strict=True) if is_right is side) for side in (True, False)
        )
        return float(math.prod(sides))

    def part(self, group: RolloutGroup, part: int, parts: int) -> object:
        """Of a rule that `splits`: part `part` of `parts`, of about equal work, of what takes long; small, on the CPU.
        `credit` is then given all of them in `group.parts`, and must say the same as without."""
        raise TypeError(f"rule {self.name} has no parts; define part(), or leave splits False")

    def evidence(self, group: RolloutGroup, credit: Credit) -> GroupEvidence | None:
        """What there is to show of a group on steps that are dumped. Must not change its arguments."""
        return None

    def over_batch(self, advantages: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The rule's own advantages (T_i,), float32 on the CPU, of a step's rated rollouts in order, e.g. to whiten."""
        return advantages

    def summarize(self, groups: Sequence[GroupCredit]) -> dict[str, float]:
        """The metrics of one step from those of its groups, without the rule's name: means, and the weights' range."""
        metrics = means([group.metrics for group in groups])
        for name in CREDIT_TENSORS:
            values = torch.cat([torch.empty(0), *(v for group in groups for v in group.tensors().get(name, ()))])
            if len(values):
                numbers = {"mean": values.mean(), "min": values.min(), "max": values.max()}
                metrics |= {f"{name.removesuffix('s')}_{what}": value.item() for what, value in numbers.items()}
        return metrics


def means(metrics: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each metric over those (groups, micro-batches) that have it.

    >>> means([{"a": 1.0}, {"a": 3.0, "b": 5.0}])
    {'a': 2.0, 'b': 5.0}
    """
    values: dict[str, list[float]] = {}
    for name, value in (item for one in metrics for item in one.items()):
        values.setdefault(name, []).append(value)
    return {name: sum(values[name]) / len(values[name]) for name in sorted(values)}


class UpdateRule(ABC):
    """A rule that acts in the update, on micro-batches, which don't keep the rollouts of a group together."""

    name: str = "rule"  # as of a `CreditRule`
    needs: frozenset[str] = frozenset({"entropies"})  # of `UPDATE_NEEDS`

    @abstractmethod
    def advantages(
        self, advantages: torch.Tensor, entropies: torch.Tensor | None, mask: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The advantages to use, and metrics of the micro-batch.

        Args:
            advantages: (B, A) float32, OpenRLHF's `group_norm`.
            entropies: (B, A) float32, nats, of the current policy over the whole vocabulary, without a gradient; None
                for a rule that does not need them, which saves computing them.
            mask: (B, A) bool, the response tokens.
        """
