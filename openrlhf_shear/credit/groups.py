"""Groups assembled from micro-batches: collect what the rule needs, weigh the tokens, keep only the weights.

Beside them, the metrics and warnings of a step's groups.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch

from openrlhf_shear.config.spec import WAITING_BYTES
from openrlhf_shear.credit.apply import weighed
from openrlhf_shear.credit.checks import CreditRuleError, checked_evidence
from openrlhf_shear.credit.rule import OF_ROLLOUTS, Credit, CreditRule, GroupCredit, RolloutGroup, StepScores
from openrlhf_shear.transport.tiles import free_bytes

LATE = ("ref_log_probs",)  # needs that are known only after the policy has read all rollouts
LEAST_SPREAD = 2.0  # of `cost_spread`, std(C) / epsilon: below it, training warns

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CreditRequest:
    """Facts about one micro-batch for the actor. Row i of the micro-batch is rollout `rollouts[i]` of the step."""

    rollouts: tuple[int, ...]  # index within the step's rollouts
    groups: tuple[int, ...]  # index of the prompt that each rollout answers
    rewards: tuple[float, ...]  # scores; NaN where a reward failed
    correct: tuple[bool | None, ...]  # None: unknown, because the reward failed
    group_size: int  # rollouts per prompt
    prm_scores: tuple[StepScores, ...] | None = None  # if the rule needs them
    step: int = 1  # of the training, from 1
    evidence: bool = False  # whether the rule also gives its evidence
    owners: tuple[int, ...] | None = None  # the rank that keeps each rollout's group; None: any rank that sees it

    def kept_by(self, rank: int) -> list[bool]:
        """Say of each row whether this rank keeps it."""
        return [True] * len(self.groups) if self.owners is None else [owner == rank for owner in self.owners]


@dataclass(frozen=True)
class WaitingGroup:
    """A whole group that waits for its rule."""

    group: RolloutGroup
    rollouts: tuple[int, ...]  # their index within the step
    evidence: bool  # whether the rule also gives its evidence

    @property
    def nbytes(self) -> int:
        """Bytes of the group's tensors, on their device."""
        return sum(tensor.nbytes for tensor in self._tensors())

    @property
    def device(self) -> torch.device:
        """Device of the largest tensor; the CPU without tensors."""
        largest = max(self._tensors(), key=lambda tensor: tensor.nbytes, default=None)
        return torch.device("cpu") if largest is None else largest.device

    def _tensors(self) -> list[torch.Tensor]:
        columns = (getattr(self.group, each.name) for each in fields(RolloutGroup))
        items = (item for column in columns if isinstance(column, tuple) for item in column)
        return [item for item in items if isinstance(item, torch.Tensor)]

    def to(self, device: torch.device | str) -> "WaitingGroup":
        """Return the group with its states on `device`; everything else is on the CPU."""
        states = {name: getattr(self.group, name) for name in ("hidden_states", "source_states")}
        moved = {name: tuple(h.to(device) for h in rows) for name, rows in states.items() if rows is not None}
        return replace(self, group=replace(self.group, **moved)) if moved else self


class GroupCollector:
    """Holder of what a rule needs, until all ranks have finished their forward passes.

    Each forward pass is a collective, so a rule that ran in between would make every rank wait. Only groups that do not
    fit into memory are weighed at once.
    """

    def __init__(
        self,
        rule: CreditRule,
        max_waiting_bytes: float | None = math.inf,
        rank: int = 0,
        shared: Mapping[str, object] | None = None,
    ):
        """
        Args:
            max_waiting_bytes: limit on the tensors of waiting groups, on their device; None: chosen at the first
                group (`waiting_bytes`). Groups that lack a late need wait all the same.
            rank: this rank, among those that share the rollouts that several of them see.
            shared: what the rule needs that is not a rollout's (`credit.rule.SHARED`).
        """
        self._rule, self._rank = rule, rank
        self._shared = dict(shared or {})
        self._late = [name for name in LATE if name in rule.needs]
        self._most = math.inf if self._late else max_waiting_bytes
        self._open: dict[int, dict[int, dict[str, object]]] = {}  # group -> rollout -> its columns of a RolloutGroup
        self._waiting: dict[int, WaitingGroup] = {}
        self._done: list[GroupCredit] = []

    def add(self, request: CreditRequest, lengths: Sequence[int], tensors: Mapping[str, Sequence]) -> None:
        """Take in one micro-batch, without rows that another rank keeps.

        Args:
            lengths: response tokens T_i of each row.
            tensors: by the names of the rule's needs in `OF_ROLLOUTS`, other than PRM scores and `LATE`: for each row a
                tensor (T_i, ...), on any device, or the texts of its T_i tokens.

        Raises CreditRuleError: the rule fails on a group that is now complete and cannot wait.
        """
        columns = {"rewards": request.rewards, "correct": request.correct, "lengths": lengths, **tensors}
        if "prm_scores" in self._rule.needs:
            columns["prm_scores"] = request.prm_scores
        rows = zip(request.rollouts, request.groups, request.kept_by(self._rank), strict=True)
        for row, (rollout, group, is_own) in enumerate(rows):
            if not is_own:
                continue
            members = self._open.setdefault(group, {})
            members[rollout] = {name: values[row] for name, values in columns.items()}
            if len(members) == request.group_size:
                self._complete(group, self._open.pop(group), request)

    def add_late(self, name: str, rows: Mapping[int, Mapping[int, torch.Tensor]]) -> None:
        """Take in a late need: by group and rollout a tensor (T_i,), of all groups that wait here."""
        for number, waiting in self._waiting.items():
            values = tuple(rows[number][rollout] for rollout in waiting.rollouts)
            self._waiting[number] = replace(waiting, group=replace(waiting.group, **{name: values}))

    def waiting(self) -> tuple[dict[int, int], float]:
        """Return the bytes of each waiting group, by number, and the limit on their sum."""
        limit = math.inf if self._most is None else self._most
        return {number: waiting.nbytes for number, waiting in self._waiting.items()}, limit

    def lend(self, numbers: Sequence[int]) -> dict[int, WaitingGroup]:
        """Return the waiting groups among `numbers`, on the CPU, for other ranks; they also stay here until `take`."""
        return {number: self._waiting[number].to("cpu") for number in numbers if number in self._waiting}

    def work(
        self, numbers: Sequence[int], borrowed: Mapping[int, WaitingGroup], device: torch.device | str = "cpu"
    ) -> None:
        """Weigh this rank's share of the groups for the next `take`: those of `numbers` that wait here, and `borrowed`.

        Args:
            borrowed: groups of other ranks, which go to `device` one at a time, after this rank's groups have left it.
        """
        self._weigh([self._waiting.pop(number) for number in sorted(numbers) if number in self._waiting])
        for _, waiting in sorted(borrowed.items()):
            self._weigh([waiting.to(device)])

    def take(self, lent: Sequence[int] = ()) -> list[GroupCredit]:
        """Return the credit of all groups of this rank, and forget them.

        Args:
            lent: groups that other ranks have weighed.

        Raises:
            RuntimeError: a group is incomplete: its rollouts were spread over ranks, or lost.
            CreditRuleError: the rule fails.
        """
        opened, waiting = self._open, self._waiting
        self._open, self._waiting = {}, {}
        if opened:
            self._done = []
            sizes = {group: len(members) for group, members in opened.items()}
            raise RuntimeError(f"incomplete groups on this rank (group: rollouts seen): {sizes}")
        groups = [each for number, each in waiting.items() if number not in lent]
        waiting.clear()
        try:
            self._weigh(groups)
            return self._done
        finally:
            self._done = []

    def _complete(self, number: int, members: dict[int, dict[str, object]], request: CreditRequest) -> None:
        rollouts = tuple(sorted(members))
        needs = [name for name in OF_ROLLOUTS if name in self._rule.needs and name not in self._late]
        names = ("rewards", "correct", "lengths", *needs)
        columns = {name: tuple(members[i][name] for i in rollouts) for name in names}
        group = WaitingGroup(RolloutGroup(number, step=request.step, **columns), rollouts, request.evidence)
        if self._most is None:
            self._most = waiting_bytes(group.device)
        if sum(waiting.nbytes for waiting in self._waiting.values()) + group.nbytes > self._most:
            self._weigh([group])
        else:
            self._waiting[number] = group

    def _weigh(self, waiting: Sequence[WaitingGroup]) -> None:
        groups = [replace(each.group, **self._shared) for each in waiting]
        for states in (states for group in groups for states in group.hidden_states or group.source_states or ()):
            if states.is_cuda:
                torch.cuda.synchronize(states.device)  # so that the rule's time excludes the forward pass
                break
        credits = weighed(self._rule, groups, [each.rollouts for each in waiting]) if groups else []
        for each, group, (group_credit, credit) in zip(waiting, groups, credits, strict=True):
            self._done.append(self._with_evidence(group, group_credit, credit) if each.evidence else group_credit)

    def _with_evidence(self, group: RolloutGroup, group_credit: GroupCredit, credit: Credit) -> GroupCredit:
        started = time.perf_counter()
        try:
            shown = checked_evidence(self._rule, group, credit)
        except CreditRuleError as error:  # the step can continue without evidence
            logger.warning("no evidence is dumped: %s", error)
            shown = None
        return replace(group_credit, evidence=shown, evidence_seconds=time.perf_counter() - started)


def spare_bytes(device: torch.device) -> int:
    """Return the bytes of a CUDA device that are free, less the most that a forward pass has needed for a moment."""
    moment = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    return free_bytes(device) - moment


def waiting_bytes(device: torch.device) -> float:
    """Return the limit, in bytes, on the states of waiting groups on `device`, where the command line gives none.

    Half of the spare memory of a CUDA device may hold them: the other half is for the search and its copy of a group.
    """
    if device.type != "cuda":
        return WAITING_BYTES
    there = spare_bytes(device)
    chosen = max(0, there // 2)
    logger.info("waiting groups: up to %.3g GiB of the %.3g GiB to spare on %s", chosen / 2**30, there / 2**30, device)
    return chosen


def step_metrics(rule: CreditRule, groups: Sequence[GroupCredit], seconds: float) -> dict[str, float]:
    """Return the `RULE/...` metrics of a training step; `seconds` is the time of the slowest rank in the rule.

    `mixed_groups`, the share of groups with both outcomes, is of every rule.
    """
    mixed = sum({True, False} <= {*group.correct} for group in groups) / max(len(groups), 1)
    metrics = {"mixed_groups": mixed} | rule.summarize(groups) | {"credit_seconds": seconds}
    return {f"{rule.name}/{name}": value for name, value in metrics.items()}


def step_warnings(metrics: Mapping[str, float], earlier: set[str]) -> list[str]:
    """Return the problems that a step's metrics show, of any rule: one line each.

    A small `cost_spread` is told once in a run: `earlier` holds the metrics of earlier warnings, and grows.

    >>> step_warnings({"shear/nonfinite_rollouts": 0.0, "mine/unconverged_fraction": 0.25}, set())
    ['mine: 25.00% of the transport problems did not reach their tolerance']
    """
    problems = {
        "nonfinite_rollouts": "{:.0f} rollouts with NaN or infinite hidden states have weight 1 and oppose no rollout",
        "unconverged_fraction": "{:.2%} of the transport problems did not reach their tolerance",
    }
    named = [(*name.split("/", 1), value) for name, value in metrics.items()]
    lines = [f"{rule}: {problems[what].format(value)}" for rule, what, value in named if value and what in problems]
    for rule, what, value in named:
        name = f"{rule}/{what}"
        if what == "cost_spread" and value < LEAST_SPREAD and name not in earlier:
            earlier.add(name)
            lines.append(
                f"{name} is {value:.2g}, below {LEAST_SPREAD:g}: costs between tokens of opposite outcomes differ by "
                f"little more than epsilon, so weights hardly tell tokens apart; lower {rule}.epsilon_rel, or set "
                f"{rule}.epsilon_spread, e.g. to 0.1 (docs/recipes.md). This is said once"
            )
    return lines


_SHOWN = 4  # scores that a line lists; of more it gives the least and the largest


class Outcomes:
    """Watch of a run on its groups."""

    def __init__(self, flag: str, threshold: float, which: str):
        """
        Args:
            flag: the setting of the threshold, as a user writes it.
            threshold: a rollout is correct if its score is at least this.
            which: the setting that names the reward that decides.
        """
        self._flag, self._threshold, self._which = flag, threshold, which
        self._scores: set[float] = set()
        self._groups = self._different = 0  # groups of the run; of these with different rewards
        self._credited = self._told = False  # whether any group had both outcomes or token credit; whether it was told

    def note(self, groups: Sequence[GroupCredit]) -> str:
        """Count a step's groups; return a line at the first in which rewards differ and no group was ever mixed."""
        for group in groups:
            rewards = {reward for reward in group.rewards if reward == reward}
            self._groups, self._different = self._groups + 1, self._different + (len(rewards) > 1)
            rows = (row for tensors in group.tensors().values() for row in tensors)
            self._credited |= {True, False} <= set(group.correct) or any((row != row[:1]).any() for row in rows)
            self._scores |= rewards if len(self._scores) <= 1000 else {min(rewards, default=0), max(rewards, default=0)}
        if self._told or not self.shown():
            return ""
        self._told = True
        return self.shown()

    def shown(self) -> str:
        """Return the line if no group was mixed although rewards differed, else "".

        >>> group = GroupCredit((0, 1), (1.5, 0.5), (True, True), {}, 0.0)
        >>> Outcomes("threshold", 0.5, "reward").note([group]).split(",")[0]
        'rewards differ within 1 of 1 groups'
        """
        if self._credited or not self._different:
            return ""
        low, high = min(self._scores), max(self._scores)
        scores = sorted(self._scores)
        seen = ", ".join(f"{score:g}" for score in scores) if len(scores) <= _SHOWN else f"{low:g} to {high:g}"
        side = "at least" if low >= self._threshold else "below" if high < self._threshold else "on one side of"
        remedy = f"a threshold between {low:g} and {high:g}" if side != "on one side of" else "another threshold"
        return (
            f"rewards differ within {self._different} of {self._groups} groups, but no group has correct and incorrect "
            f"rollouts, so all tokens of a rollout have the same credit: scores {seen} are {side} {self._flag} "
            f"{self._threshold:g} in every group; use {remedy}, or {self._which} to name the reward that decides"
        )
