"""What a credit rule is: pure functions that turn a rollout's advantage into token advantages.

Nothing of a rule knows Ray, DeepSpeed or vLLM. A `CreditRule` acts while experience is made, on the policy actor and
its device: one group of rollouts in, a weight for every response token out, by which OpenRLHF's `group_norm` advantages
are multiplied (or advantages of its own in their place). An `UpdateRule` acts in the update: the advantages of a
micro-batch and the *current* policy's entropies in, advantages out.

The smallest are `rules/uniform.py` and `rules/entropy_adv.py`; `examples/rules/surprise_rule.py` is from outside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from openrlhf_shear.config import SearchConfig
from openrlhf_shear.credit.evidence import GroupEvidence

NEEDS = ("hidden_states", "log_probs", "entropies", "prm_scores")  # what a `CreditRule` can be given
UPDATE_NEEDS = ("entropies",)  # and an `UpdateRule`


@dataclass(frozen=True)
class StepScores:
    """What a process reward model says of one rollout, cut into steps (`credit.prm.steps`). K of its steps are scored.

    Attributes:
        ends: (K,) int64, ascending: the response token that ends step k, from 0.
        scores: (K,) float32: the probability that step k is right, in [0, 1].
        steps: how many the rollout has; more than K where it is too long for the model, which saw the first K.
    """

    ends: torch.Tensor
    scores: torch.Tensor
    steps: int

    @classmethod
    def of(cls, ends: Sequence[int], scores: Sequence[float]) -> StepScores:
        """From the ends of all steps and the scores of the first so many of them, which may be none."""
        known = torch.tensor(ends[: len(scores)], dtype=torch.int64)
        return cls(known, torch.tensor(scores, dtype=torch.float32), len(ends))


@dataclass(frozen=True)
class RolloutGroup:
    """G rollouts of one prompt. Tuples are by rollout, T_i is the number of response tokens of rollout i.

    Attributes:
        number: which group of the step this is, from 0; for messages.
        rewards: G scores, before any length penalty. NaN where a reward failed.
        correct: G outcomes, a score at or above `--shear.correct_threshold`; None where a reward failed.
        lengths: T_i.
        hidden_states: (T_i, d) each, float32 or bfloat16: what enters the LM head at the token's own position. None
            unless the rule needs "hidden_states".
        log_probs: (T_i,) each, float32 on the CPU, of the sampled tokens. None unless the rule needs "log_probs".
        entropies: (T_i,) each, float32, nats: of the distribution each token was drawn from, over the whole
            vocabulary. None unless the rule needs "entropies".
        prm_scores: `StepScores` on the CPU. None unless the rule needs "prm_scores" (and the run has `--prm.*`).
    """

    number: int
    rewards: tuple[float, ...]
    correct: tuple[bool | None, ...]
    lengths: tuple[int, ...]
    hidden_states: tuple[torch.Tensor, ...] | None = None
    log_probs: tuple[torch.Tensor, ...] | None = None
    entropies: tuple[torch.Tensor, ...] | None = None
    prm_scores: tuple[StepScores, ...] | None = None


CREDIT_TENSORS = ("weights", "negative_weights", "advantages")


class _HasTensors:
    def tensors(self) -> dict[str, Sequence[torch.Tensor]]:
        """Those of `CREDIT_TENSORS` that the rule gave, by name."""
        given = {name: getattr(self, name) for name in CREDIT_TENSORS}
        return {name: tensors for name, tensors in given.items() if tensors is not None}


@dataclass(frozen=True)
class Credit(_HasTensors):
    """What a rule says of a group: weights, or advantages where its `makes_advantages` says so. Each of them is G
    tensors (T_i,), finite, on any device.

    Attributes:
        weights: a token's advantage is multiplied by its weight; weights that are not negative keep every sign.
        metrics: numbers about this group; their means over a step's groups are logged as `RULE/NAME`.
        negative_weights: for tokens whose advantage is negative, where these weigh differently.
        advantages: in place of OpenRLHF's.
        details: whatever the rule's `evidence` is made of; it stays on the actor.
    """

    weights: Sequence[torch.Tensor] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    negative_weights: Sequence[torch.Tensor] | None = None
    advantages: Sequence[torch.Tensor] | None = None
    details: object = None


@dataclass(frozen=True)
class GroupCredit(_HasTensors):
    """A group's credit as it leaves the actor; tensors are (T_i,) float32 on the CPU.

    Attributes:
        rollouts: their index within the step.
        rewards, correct, metrics: as in `RolloutGroup` and `Credit`.
        seconds: of the rule; `evidence_seconds` is apart, as it is asked for on few steps.
        evidence: where it was asked for and the rule has some.
    """

    rollouts: tuple[int, ...]
    rewards: tuple[float, ...]
    correct: tuple[bool | None, ...]
    metrics: dict[str, float]
    seconds: float
    weights: tuple[torch.Tensor, ...] | None = None
    negative_weights: tuple[torch.Tensor, ...] | None = None
    advantages: tuple[torch.Tensor, ...] | None = None
    evidence: GroupEvidence | None = None
    evidence_seconds: float = 0.0


class CreditRule(ABC):
    """A rule. It is made once in the driver, to find mistakes early, and once on every policy actor.

    Attributes:
        name: before the slash of its metrics, and in messages.
        needs: what of `NEEDS` the groups must hold; hidden states cost memory, one group's at a time, and PRM scores
            another model.
        search: how the span search runs, for rules that ask `shear_weights`; set from `--shear.backend` and
            `--shear.max_cost_bytes` once the rule is made.
        makes_advantages: it gives advantages of its own in place of weights for OpenRLHF's. These then hold neither a
            KL reward nor a length penalty, which the command line refuses.
    """

    name: str = "rule"
    needs: frozenset[str] = frozenset()
    search: SearchConfig = SearchConfig()
    makes_advantages: bool = False

    @abstractmethod
    def credit(self, group: RolloutGroup) -> Credit:
        """The weights of one group. Must not change its arguments, and must give the same for the same group."""

    def evidence(self, group: RolloutGroup, credit: Credit) -> GroupEvidence | None:
        """What there is to show of a group beyond its weights, from what `credit(group)` gave, with its `details`; on
        the steps that `--shear.dump_rollouts_every` writes alone. Must not change its arguments.
        """
        return None

    def over_batch(self, advantages: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """For a rule that makes advantages: those of all rollouts of a step that have a reward, e.g. to whiten them;
        (T_i,) float32 on the CPU each, in the order of the step's rollouts.
        """
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
    """A rule that acts in the update, on every micro-batch, right before OpenRLHF's policy loss. Micro-batches don't
    keep the rollouts of a group together.
    """

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
