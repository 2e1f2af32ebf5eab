"""Interface of credit rules: pure functions from a rollout's advantage to token advantages (docs/credit-rules.md).

Next: `credit.rules.shear`, SHEAR as a rule. All built-in rules are described in `config.rules`.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Self

import torch

from openrlhf_shear.config import SearchConfig
from openrlhf_shear.config.rules import LAB_ALONE as LAB_ALONE
from openrlhf_shear.credit.captured import LMHead

CONTROLS = ("same", "permuted")


@dataclass(frozen=True)
class SpanEvidence:
    """Spans of one rollout, their nearest opposing spans, and their distances. All tensors are on the CPU.

    `heatmaps` are by the index j of the other rollout, greater than this rollout's. They hold (S, S_j) float32
    distances between shown spans, in units of nbar, for equal and opposite outcomes alike. Rollouts that were not
    measured have none.
    """

    span_starts: torch.Tensor  # (K,) int64 tokens
    span_distances: torch.Tensor  # (K,) float32 in units of nbar; infinite if no rollout opposes
    nearest_sample: torch.Tensor  # (K,) int64: rollout of the nearest span, by its index in the group; -1 if none
    nearest_span: torch.Tensor  # (K,) int64: index of that span in its rollout; -1 likewise
    heatmap_spans: torch.Tensor  # (S,) int64: the spans that heatmaps show, ascending
    heatmaps: dict[int, torch.Tensor] = field(default_factory=dict)
    # Distances by name (`CONTROLS`), (K,) float32 like `span_distances`. "same": to the other rollouts of the same
    # outcome. "permuted": to the opposing rollouts after the group's outcomes were shuffled. Empty without controls.
    controls: dict[str, torch.Tensor] = field(default_factory=dict)
    largest_norm: float | None = None  # of a token, in units of nbar; None without controls


@dataclass(frozen=True)
class GroupEvidence:
    """Evidence of a group: one `SpanEvidence` per rollout, in the order of the group."""

    rollouts: tuple[SpanEvidence, ...]


# Inputs that a `CreditRule` can ask for in `needs`: of each rollout, and what the rollouts share.
OF_ROLLOUTS = (
    *("hidden_states", "source_states", "log_probs", "ref_log_probs", "hint_log_probs", "entropies", "prm_scores"),
    *("token_ids", "token_texts", "turns"),
)
SHARED = ("lm_head", "continuations")
NEEDS = (*OF_ROLLOUTS, *SHARED)
UPDATE_NEEDS = ("entropies", "log_probs")  # of an `UpdateRule`
MEDIANS = ("cost_spread",)  # metrics of a group whose median a step shows: a single group can have a huge value


@dataclass(frozen=True)
class StepScores:
    """Scores of a process reward model for the K scored steps of one rollout (`credit.prm.steps`)."""

    ends: torch.Tensor  # (K,) int64, ascending: the response token that ends step k, from 0
    scores: torch.Tensor  # (K,) float32: the probability that step k is right, in [0, 1]
    steps: int  # all steps of the rollout; more than K if the model scored only the first K

    @classmethod
    def of(cls, ends: Sequence[int], scores: Sequence[float]) -> Self:
        """Make scores from the ends of all steps, and the scores of the first few steps, possibly none.

        Steps from the first NaN or infinite score on are not scored.
        """
        scores = list(itertools.takewhile(math.isfinite, scores))
        known = torch.tensor(ends[: len(scores)], dtype=torch.int64)
        return cls(known, torch.tensor(scores, dtype=torch.float32), len(ends))


@dataclass(frozen=True)
class RolloutGroup:
    """G rollouts of one prompt. Tuples are by rollout; T_i is the number of response tokens of rollout i.

    A field that the rule does not need is None. Hidden states are float32 or bfloat16: the input of the LM head at the
    token's position. Log-probs are those of the sampled tokens, float32 on the CPU. Entropies, float32 in nats, are
    those of the distribution from which each token was drawn, over the whole vocabulary. PRM scores are on the CPU.

    Source states are the states from which tokens were drawn: the LM head maps them to the tokens' logits. They are the
    hidden states, one position earlier.
    """

    number: int  # index of the group within the step, from 0; for messages
    rewards: tuple[float, ...]  # scores, before any length penalty; NaN where a reward failed
    correct: tuple[bool | None, ...]  # score >= `--credit.correct_threshold`; None where a reward failed
    lengths: tuple[int, ...]  # T_i
    hidden_states: tuple[torch.Tensor, ...] | None = None  # (T_i, d) each
    log_probs: tuple[torch.Tensor, ...] | None = None  # (T_i,) each
    entropies: tuple[torch.Tensor, ...] | None = None  # (T_i,) each
    prm_scores: tuple[StepScores, ...] | None = None  # in runs with `--prm.*`
    token_ids: tuple[torch.Tensor, ...] | None = None  # (T_i,) int64 each, on the CPU
    token_texts: tuple[tuple[str, ...], ...] | None = None  # T_i each, special tokens too; joined: the response
    source_states: tuple[torch.Tensor, ...] | None = None  # (T_i, d) each, dtype and device as hidden states
    ref_log_probs: tuple[torch.Tensor, ...] | None = None  # (T_i,) each, by the reference model
    # (T_i,) each, by the policy that reads the response of another correct rollout first; `log_probs` if there is none
    hint_log_probs: tuple[torch.Tensor, ...] | None = None
    turns: tuple[torch.Tensor, ...] | None = (
        None  # (T_i,) int64 each, on the CPU: the token's turn of a dialogue, from 0
    )
    lm_head: LMHead | None = None  # of the policy, on the device of the states
    # places (rollout, t) and n -> for each place the mean reward of n continuations after the first t tokens, 0..T_i
    continuations: Callable[[Sequence[tuple[int, int]], int], Sequence[float]] | None = None
    step: int = 1  # of the training, from 1

    @property
    def rated(self) -> list[int]:
        """The rollouts that have a reward."""
        return [i for i, reward in enumerate(self.rewards) if not math.isnan(reward)]


CREDIT_TENSORS = ("weights", "negative_weights", "advantages")


class _HasTensors:
    def tensors(self) -> dict[str, Sequence[torch.Tensor]]:
        """Return the tensors that the rule gave, by their names in `CREDIT_TENSORS`."""
        tensors = {name: getattr(self, name) for name in CREDIT_TENSORS}
        return {name: rows for name, rows in tensors.items() if rows is not None}


@dataclass(frozen=True)
class Credit(_HasTensors):
    """Credit of a group: weights that multiply the tokens' advantages, or, with `makes_advantages`, advantages.

    Each field of tensors holds G tensors (T_i,), finite, on any device.
    """

    weights: Sequence[torch.Tensor] | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # of this group; a step's means are logged as `RULE/NAME`
    negative_weights: Sequence[torch.Tensor] | None = None  # for tokens of negative advantage, if they differ
    advantages: Sequence[torch.Tensor] | None = None  # in place of OpenRLHF's
    details: object = None  # input of the rule's `evidence`; it stays on the actor


@dataclass(frozen=True)
class GroupCredit(_HasTensors):
    """A group's credit as it leaves the actor; tensors are (T_i,) float32 on the CPU."""

    rollouts: tuple[int, ...]  # their index within the step
    rewards: tuple[float, ...]
    correct: tuple[bool | None, ...]
    metrics: dict[str, float]
    seconds: float  # of the rule, without its evidence, which few steps ask for
    weights: tuple[torch.Tensor, ...] | None = None
    negative_weights: tuple[torch.Tensor, ...] | None = None
    advantages: tuple[torch.Tensor, ...] | None = None
    evidence: GroupEvidence | None = None
    evidence_seconds: float = 0.0

    def __getstate__(self) -> dict:
        """Join the tensors of each field into one array: pickling many small tensors takes longer than some rules."""
        joined = {name: torch.cat(list(tensors)).numpy() for name, tensors in self.tensors().items()}
        return vars(self) | joined | {"lengths": [len(values) for values in next(iter(self.tensors().values()), ())]}

    def __setstate__(self, state: dict) -> None:
        lengths = state.pop("lengths")
        for name in CREDIT_TENSORS:
            if state[name] is not None:
                state[name] = torch.tensor(state[name]).split(lengths)
        vars(self).update(state)


class CreditRule(ABC):
    """Base class of rules that act while experience is made, on the policy actor and its device.

    The driver makes the rule once as well, to find mistakes early. Advantages of a rule that `makes_advantages` contain
    no KL reward, length penalty or clipped reward; the command line refuses these with such a rule.
    """

    name: str = "rule"  # prefix of the rule's metrics, `NAME/...`, and its name in messages
    needs: frozenset[str] = frozenset()  # of `NEEDS`; hidden states cost a group's memory, PRM scores another model
    search: SearchConfig = SearchConfig()  # of `shear_weights`; set from the command line after the rule is made
    makes_advantages: bool = False  # the rule returns advantages in place of OpenRLHF's, rather than weights

    @abstractmethod
    def credit(self, group: RolloutGroup) -> Credit:
        """Return the credit of one group. Must not change its argument, and must be the same for the same group."""

    def credits(self, groups: Sequence[RolloutGroup]) -> list[Credit]:
        """Return the `credit` of each group. Override it where many groups at once take less time than one by one."""
        return [self.credit(group) for group in groups]

    def work(self, lengths: Sequence[int], correct: Sequence[bool | None]) -> float:
        """Return the amount of work for a group of these T_i and outcomes, in any unit; ranks share it evenly.

        For a rule that reads hidden states, it is the number of pairs of tokens with opposite outcomes. For any other
        rule it is 0, and its groups never move to another rank.
        """
        if "hidden_states" not in self.needs:
            return 0.0
        sides = (
            sum(n for n, is_right in zip(lengths, correct, strict=True) if is_right is side) for side in (True, False)
        )
        return float(math.prod(sides))

    def evidence(self, group: RolloutGroup, credit: Credit) -> GroupEvidence | None:
        """Return evidence of a group, for steps whose rollouts are dumped. Must not change its arguments."""
        return None

    def over_batch(self, advantages: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return a step's advantages, given the rule's (T_i,), float32 on the CPU, of all rated rollouts in order.

        A rule that makes advantages can whiten them here.
        """
        return advantages

    def summarize(self, groups: Sequence[GroupCredit]) -> dict[str, float]:
        """Return a step's metrics from those of its groups, without the rule's name: means, and the weights' range."""
        metrics = means([group.metrics for group in groups])
        for name in CREDIT_TENSORS:
            values = torch.cat([torch.empty(0), *(v for group in groups for v in group.tensors().get(name, ()))])
            if len(values):
                numbers = {"mean": values.mean(), "min": values.min(), "max": values.max()}
                metrics |= {f"{name.removesuffix('s')}_{what}": value.item() for what, value in numbers.items()}
        return metrics


def means(metrics: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the groups or micro-batches that have it; the median of those in `MEDIANS`.

    >>> means([{"a": 1.0}, {"a": 3.0, "b": 5.0}])
    {'a': 2.0, 'b': 5.0}
    """
    values: dict[str, list[float]] = {}
    for each in metrics:
        for name, value in each.items():
            values.setdefault(name, []).append(value)
    return {name: sum(values[name]) / len(values[name]) for name in sorted(values)} | medians(metrics)


def medians(metrics: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median over the groups that have it of each metric in `MEDIANS`."""
    held = {name: [each[name] for each in metrics if name in each] for name in MEDIANS}
    return {name: median(values) for name, values in held.items() if values}


def masked_means(values: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """Return the mean of each (numbers, mask) where its mask is true, 0 where it never is; this waits once."""
    sums = [(torch.where(mask, each.double(), 0.0).sum(), mask.sum().double()) for each, mask in values.values()]
    numbers = torch.stack([part for pair in sums for part in pair]).view(-1, 2).tolist()
    return {name: total / max(count, 1.0) for name, (total, count) in zip(values, numbers, strict=True)}


class UpdateRule(ABC):
    """Base class of rules that act in the update, on micro-batches, which do not keep a group's rollouts together."""

    name: str = "rule"  # as in `CreditRule`
    needs: frozenset[str] = frozenset({"entropies"})  # of `UPDATE_NEEDS`

    @abstractmethod
    def advantages(
        self, advantages: torch.Tensor, entropies: torch.Tensor | None, mask: torch.Tensor, **log_probs: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the advantages to use, and metrics of the micro-batch.

        Args:
            advantages: (B, A) float32, OpenRLHF's `group_norm`.
            entropies: (B, A) float32, nats, of the current policy over the whole vocabulary, without a gradient; None
                (and never computed) for a rule that does not need them.
            mask: (B, A) bool, the response tokens.
            log_probs: only for a rule that needs them: `log_probs` (B, A) float32 of the current policy, without a
                gradient, and `old_log_probs` (B, A) float32 of the policy that the loss compares it with.
        """
