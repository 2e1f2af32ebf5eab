"""Token advantages of a step's rollouts: by the rules of training, by the known first error, and by controls.

Legend: N = P x G rollouts; T_i response tokens of rollout i.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from openrlhf_shear.credit.apply import token_advantages, weighed
from openrlhf_shear.credit.baselines import group_advantages
from openrlhf_shear.credit.registry import Rule
from openrlhf_shear.credit.rule import SHARED, Credit, CreditRule, RolloutGroup, UpdateRule, means
from openrlhf_shear.lab.policy import Reading
from openrlhf_shear.lab.rollouts import Rollouts
from openrlhf_shear.rollouts.columns import token_texts
from openrlhf_shear.rollouts.localisation import Trace

Rows = Sequence[torch.Tensor]  # N of (T_i,)
_DIGITS = 5  # of a factor


def shuffled(advantages: Rows, base: Sequence[float], seed: int) -> list[torch.Tensor]:
    """Put each rollout's token advantages in a random order: the same credit at random places."""
    generator = torch.Generator().manual_seed(seed)
    return [row[torch.randperm(len(row), generator=generator)] for row in advantages]


def mass_matched(advantages: Rows, base: Sequence[float], seed: int) -> list[torch.Tensor]:
    """Return uniform credit with the same totals as the rule's.

    Rollouts with a negative advantage are all scaled by one constant, so that the negative token advantages sum to the
    rule's. Rollouts with a positive advantage are scaled by another constant in the same way.

    Example: base -1 for rollouts of 2 and 2 tokens, the rule gives [0, -1] and [-0.5, -0.5] -> -0.5 everywhere.

    Args:
        advantages: the rule's.
        base: N, the rollouts' advantages before the rule.
    """
    tokens, plain = torch.cat(list(advantages)).double(), torch.tensor(base, dtype=torch.float64)
    lengths = torch.tensor([len(row) for row in advantages])

    def scale(side) -> float:
        before = (side(plain) * lengths).sum().item()
        return side(tokens).sum().item() / before if before else 0.0

    blame, praise = scale(lambda values: values.clamp(max=0)), scale(lambda values: values.clamp(min=0))
    return [
        torch.full_like(row, value * (blame if value < 0 else praise))
        for row, value in zip(advantages, base, strict=True)
    ]


def on_incorrect(advantages: Rows, base: Sequence[float], seed: int) -> list[torch.Tensor]:
    """Keep the rule's credit on rollouts with a negative advantage; give uniform credit to the others."""
    return [row if value < 0 else torch.full_like(row, value) for row, value in zip(advantages, base, strict=True)]


def permuted(group: RolloutGroup, seed: int) -> RolloutGroup:
    """Return the group with its outcomes in a random order; the rollouts keep the signs of their advantages.

    What a rule that reads outcomes then finds is unrelated to right and wrong.
    """
    order = torch.randperm(len(group.correct), generator=torch.Generator().manual_seed(seed)).tolist()
    rewards, correct = (tuple(values[i] for i in order) for values in (group.rewards, group.correct))
    return replace(group, rewards=rewards, correct=correct)


PERMUTED = "permuted"
AFTERWARDS = {"shuffled": shuffled, "matched": mass_matched, "on_incorrect": on_incorrect}  # act on the advantages
CONTROLS = (*AFTERWARDS, PERMUTED)


@dataclass(frozen=True)
class KnownGroup(RolloutGroup):
    """A group with the index of each rollout's first wrong token; None without an error."""

    first_errors: tuple[int | None, ...] = ()


class FromErrorOracle(CreditRule):
    """Weigh incorrect rollouts 1 from the first wrong token on and 0 before; leave correct ones alone, even lucky ones.

    It is a reference for rules that guess the error, not an upper bound: nobody proved that this credit is the best. An
    error that was never written, because the response hit the token limit, counts as its last token.
    """

    name = "oracle_from_error"
    needs = frozenset({"first_errors"})  # training cannot provide them, and so refuses this rule

    def credit(self, group: KnownGroup) -> Credit:
        weights = [torch.ones(length) for length in group.lengths]
        for i, (correct, error) in enumerate(zip(group.correct, group.first_errors, strict=True)):
            if not correct and group.lengths[i]:
                weights[i] = self.blame(group, i, min(error, group.lengths[i] - 1))
        return Credit(weights)

    def blame(self, group: KnownGroup, i: int, error: int) -> torch.Tensor:
        """Return (T_i,) weights of the incorrect rollout i, whose first wrong token is `error`."""
        return (torch.arange(group.lengths[i]) >= error).float()


class FirstWrongOracle(FromErrorOracle):
    """Weigh incorrect rollouts 1 on one token and 0 elsewhere: with probability `hits` the first wrong one.

    Otherwise the token is a decoy: another token, the first of those with the most similar log-probability. So hits = 0
    shows what credit is worth that finds surprise and no error. Raises ValueError where `hits` is not in [0, 1].
    """

    name = "oracle_first_wrong"
    needs = frozenset({"first_errors", "log_probs"})

    def __init__(self, hits: float = 1.0):
        if not 0 <= hits <= 1:
            raise ValueError(f"oracle_first_wrong.hits must be between 0 and 1: got {hits!r}; use e.g. 0.4")
        self.hits = float(hits)

    def blame(self, group: KnownGroup, i: int, error: int) -> torch.Tensor:
        apart = (group.log_probs[i] - group.log_probs[i][error]).abs()
        apart[error] = torch.inf
        hit = random.Random(f"{group.step}:{group.number}:{i}").random() < self.hits
        return torch.nn.functional.one_hot(torch.tensor(error) if hit else apart.argmin(), len(apart)).float()


ORACLES = {oracle.name: oracle for oracle in (FromErrorOracle, FirstWrongOracle)}


@dataclass(frozen=True)
class StepCredit:
    """Credit of a step's N rollouts, with its cost and metrics."""

    base: tuple[float, ...]  # N group-normalised advantages, before any rule
    advantages: list[torch.Tensor]  # N of (T_i,) float32
    seconds: float  # of the rule
    metrics: dict[str, float]  # the rule's own; means over the groups that have them


def credited(
    rule: Rule,
    control: str | None,
    rollouts: Rollouts,
    reading: Reading,
    seed: int,
    step: int = 1,
    further: Mapping[str, object] = {},
) -> StepCredit:
    """Return the token advantages of a step.

    Args:
        control: one of `CONTROLS`, in place of the rule's own advantages. Several, joined by "/", act in turn, each on
            the result of the one before.
        seed: of the controls' randomness.
        step: of the training, from 1.
        further: needs of the rule that the reading does not hold (`lab.rollouts.further_inputs`).

    Raises:
        CreditRuleError: the rule failed.
    """
    rewards = torch.tensor(rollouts.correct, dtype=torch.float32)
    base = tuple(group_advantages(rewards, rollouts.group_size).tolist())
    if isinstance(rule, UpdateRule):
        plain = [torch.full((length,), value) for length, value in zip(rollouts.lengths, base, strict=True)]
        return StepCredit(base, plain, 0.0, {})
    return controlled(rule, control, groups(rule, rollouts, reading, step, further), base, seed)


def controlled(
    rule: CreditRule, control: str | None, inputs: Sequence[RolloutGroup], base: Sequence[float], seed: int
) -> StepCredit:
    """Return the token advantages of groups by a rule that acts on whole groups.

    Args:
        control, seed: as in `credited`.
        given: the rule's input.
        base: the advantages of all their rollouts before the rule, group after group.

    Raises:
        CreditRuleError: the rule failed.
    """
    started = time.perf_counter()
    controls = control.split("/") if control else []
    if PERMUTED in controls:
        inputs = [permuted(group, seed * len(inputs) + i) for i, group in enumerate(inputs)]
    ends = accumulate(len(group.lengths) for group in inputs)
    rollouts = [range(end - len(group.lengths), end) for group, end in zip(inputs, ends, strict=True)]
    weights = [credit for credit, _ in weighed(rule, inputs, rollouts)]
    lengths = [length for group in inputs for length in group.lengths]
    plain = {i: torch.full((n,), value) for i, (n, value) in enumerate(zip(lengths, base, strict=True))}
    credits = token_advantages(rule, weights, plain)
    advantages = [credits[i].advantages for i in range(len(plain))]
    seconds = time.perf_counter() - started
    for name in controls:
        if name in AFTERWARDS:
            advantages = AFTERWARDS[name](advantages, base, seed)
    return StepCredit(tuple(base), advantages, seconds, means([group.metrics for group in weights]))


def traced(rollouts: Rollouts, base: Sequence[float], advantages: Rows) -> list[Trace]:
    """Return the rollouts of mixed groups with the factor on each token's advantage.

    Args:
        base: N advantages of the rollouts before the rule; 0 in groups of one outcome.
    """
    return [
        Trace(
            group=str(i // rollouts.group_size),
            correct=rollouts.correct[i],
            # the advantages are float32: rounding makes equal factors equal for every advantage
            weights=(advantages[i].double() / before).numpy().round(_DIGITS).tolist(),
            first_error=rollouts.first_errors[i],
        )
        for i, before in enumerate(base)
        if before != 0
    ]


def groups(
    rule: CreditRule, rollouts: Rollouts, reading: Reading, step: int = 1, further: Mapping[str, object] = {}
) -> list[KnownGroup]:
    """Return the rule's input, group by group; `further` holds the needs that the reading does not."""
    ids = _of_responses(rollouts.sequences[:, 1:], rollouts.mask)
    texts = (tuple(token_texts(rollouts.tokenizer, row.tolist())) for row in ids)
    wanted = {
        "hidden_states": reading.states,
        "source_states": reading.source_states,
        "log_probs": _of_responses(reading.log_probs, rollouts.mask),
        "entropies": _of_responses(reading.entropies, rollouts.mask),
        "first_errors": rollouts.first_errors,
        "token_ids": ids,
        "token_texts": list(texts) if "token_texts" in rule.needs else None,
        **{name: rows for name, rows in further.items() if name not in SHARED},
    }
    return [
        KnownGroup(
            number,
            tuple(float(outcome) for outcome in rollouts.correct[group]),
            rollouts.correct[group],
            rollouts.lengths[group],
            step=step,
            **{name: tuple(values[group]) for name, values in wanted.items() if name in rule.needs},
            **_shared(further, group.start),
        )
        for number, group in enumerate(rollouts.groups)
    ]


def _shared(further: Mapping[str, object], first: int) -> dict[str, object]:
    """Return what the rollouts of a group share; `first` is the group's first rollout."""
    shared = {name: further[name] for name in SHARED if name in further}
    if "continuations" in shared:
        of_step = shared["continuations"]
        shared["continuations"] = lambda places, n: of_step([(first + i, t) for i, t in places], n)
    return shared


def _of_responses(values: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    return [row[keep].detach() for row, keep in zip(values, mask, strict=True)]
