"""Whole groups out of micro-batches: collect what the rule needs of one, weigh its tokens, keep only the weights."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import NamedTuple

import torch

from openrlhf_shear.credit.apply import weighed
from openrlhf_shear.credit.checks import CreditRuleError, checked_evidence, checked_part
from openrlhf_shear.credit.rule import CreditRule, GroupCredit, RolloutGroup, StepScores

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CreditRequest:
    """What the actor must know of one micro-batch. Row i of the micro-batch is rollout `rollouts[i]` of the step."""

    rollouts: tuple[int, ...]  # index within the step's rollouts
    groups: tuple[int, ...]  # which prompt each one answers
    rewards: tuple[float, ...]  # scores; NaN where a reward failed
    correct: tuple[bool | None, ...]  # None: not known, its reward failed
    group_size: int  # rollouts a prompt
    prm_scores: tuple[StepScores, ...] | None = None  # where the rule needs them
    step: int = 1  # of the training, from 1
    evidence: bool = False  # whether the rule is asked for its evidence too
    owners: tuple[int, ...] | None = None  # the rank that keeps each one's group; None: whichever sees it

    def kept_by(self, rank: int) -> list[bool]:
        """Of each row, whether it is this rank's to keep."""
        return [True] * len(self.groups) if self.owners is None else [owner == rank for owner in self.owners]


@dataclass(frozen=True)
class WaitingGroup:
    """A whole group that its rule has not seen yet."""

    group: RolloutGroup
    rollouts: tuple[int, ...]  # their index within the step
    evidence: bool  # whether the rule is asked for its evidence too

    @property
    def nbytes(self) -> int:
        """Of its tensors, on their device."""
        columns = (getattr(self.group, each.name) for each in fields(RolloutGroup))
        tensors = (item for column in columns if isinstance(column, tuple) for item in column)
        return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))

    def to(self, device: torch.device | str) -> "WaitingGroup":
        """The same with its hidden states elsewhere: all else is on the CPU."""
        states = self.group.hidden_states
        if states is None:
            return self
        return replace(self, group=replace(self.group, hidden_states=tuple(h.to(device) for h in states)))


class Job(NamedTuple):
    """What a rank is asked to do: a whole group, or one of its parts."""

    group: int
    part: int = 0
    parts: int = 1


class GroupCollector:
    """Holds what a rule needs until the forward passes of all ranks are over: a rule that ran in between would make
    every rank wait, as each pass is a collective. Only what would not fit is weighed at once.
    """

    def __init__(self, rule: CreditRule, max_waiting_bytes: float = math.inf, rank: int = 0):
        """
        Args:
            max_waiting_bytes: of the tensors of whole groups that wait, on their device.
            rank: this one, of those among which rollouts that several see are shared.
        """
        self._rule, self._rank = rule, rank
        self._most = max_waiting_bytes
        self._open: dict[int, dict[int, dict[str, object]]] = {}  # group -> rollout -> its part of a RolloutGroup
        self._waiting: dict[int, WaitingGroup] = {}
        self._done: list[GroupCredit] = []

    def add(self, request: CreditRequest, lengths: Sequence[int], tensors: Mapping[str, Sequence]) -> None:
        """Take in one micro-batch, but for rows that another rank keeps.

        Args:
            lengths: response tokens T_i of each row.
            tensors: by the names of `rule.needs` but for PRM scores, a row each: a tensor (T_i, ...), on any device, or
                the texts of its T_i tokens.

        Raises CreditRuleError: the rule fails on a group that is complete now and cannot wait.
        """
        columns = {"rewards": request.rewards, "correct": request.correct, "lengths": lengths, **tensors}
        if "prm_scores" in self._rule.needs:
            columns["prm_scores"] = request.prm_scores
        rows = zip(request.rollouts, request.groups, request.kept_by(self._rank), strict=True)
        for row, (rollout, group, kept) in enumerate(rows):
            if not kept:
                continue
            members = self._open.setdefault(group, {})
            members[rollout] = {name: values[row] for name, values in columns.items()}
            if len(members) == request.group_size:
                self._complete(group, self._open.pop(group), request)

    def lend(self, numbers: Sequence[int]) -> dict[int, WaitingGroup]:
        """Those of these groups that wait, on the CPU, for other ranks; they stay here until `take`."""
        return {number: self._waiting[number].to("cpu") for number in numbers if number in self._waiting}

    def work(
        self, jobs: Sequence[Job], borrowed: Mapping[int, WaitingGroup], device: torch.device | str = "cpu"
    ) -> tuple[dict[Job, object], float]:
        """Do this rank's jobs: whole groups for the next `take`, and parts of groups, which come back.

        Args:
            borrowed: groups of other ranks; of a job whose group is neither here nor there, which was weighed at once,
                nothing is left to do.
            device: where to.

        Returns:
            The parts, and the seconds they took.
        """
        made: dict[Job, object] = {}
        seconds = 0.0
        for number, mine in groupby(sorted(jobs), lambda job: job.group):
            waiting = self._waiting.get(number) or (borrowed[number].to(device) if number in borrowed else None)
            for job in mine if waiting is not None else ():
                if job.parts == 1:
                    self._waiting.pop(number, None)
                    self._done.append(self._weigh(waiting))
                    continue
                began = time.perf_counter()
                made[job] = checked_part(self._rule, waiting.group, job.part, job.parts)
                seconds += time.perf_counter() - began
        return made, seconds

    def take(self, lent: Sequence[int] = (), parts: Mapping[int, tuple] | None = None) -> list[GroupCredit]:
        """The credit of all groups here, which are then forgotten.

        Args:
            lent: groups that other ranks have weighed.
            parts: all parts of groups of this rank that several ranks have shared.

        Raises:
            RuntimeError: a group is incomplete, so it was spread or lost.
            CreditRuleError: the rule fails.
        """
        opened, waiting, done = self._open, self._waiting, self._done
        self._open, self._waiting, self._done = {}, {}, []
        if opened:
            sizes = {group: len(members) for group, members in opened.items()}
            raise RuntimeError(f"incomplete groups on this rank (group: rollouts seen): {sizes}")
        for number in lent:
            waiting.pop(number, None)
        while waiting:
            number, group = waiting.popitem()
            whole = tuple((parts or {}).get(number, ()))
            done.append(self._weigh(replace(group, group=replace(group.group, parts=whole or None))))
        return done

    def _complete(self, number: int, members: dict[int, dict[str, object]], request: CreditRequest) -> None:
        rollouts = tuple(sorted(members))
        names = ("rewards", "correct", "lengths", *self._rule.needs)
        columns = {name: tuple(members[i][name] for i in rollouts) for name in names}
        group = WaitingGroup(RolloutGroup(number, step=request.step, **columns), rollouts, request.evidence)
        if sum(one.nbytes for one in self._waiting.values()) + group.nbytes > self._most:
            self._done.append(self._weigh(group))
        else:
            self._waiting[number] = group

    def _weigh(self, waiting: WaitingGroup) -> GroupCredit:
        group = waiting.group
        for states in group.hidden_states or ():
            if states.is_cuda:
                torch.cuda.synchronize(states.device)  # the forward pass is not the credit stage's time
                break
        group_credit, credit = weighed(self._rule, group, waiting.rollouts)
        if not waiting.evidence:
            return group_credit
        started = time.perf_counter()
        try:
            shown = checked_evidence(self._rule, group, credit)
        except CreditRuleError as error:  # a picture less; the step goes on
            logger.warning("no evidence is dumped: %s", error)
            shown = None
        return replace(group_credit, evidence=shown, evidence_seconds=time.perf_counter() - started)


def step_metrics(rule: CreditRule, groups: Sequence[GroupCredit], seconds: float) -> dict[str, float]:
    """The `RULE/...` metrics of one training step, of all its groups; `seconds` are the slowest rank's in the rule."""
    metrics = rule.summarize(groups) | {"credit_seconds": seconds}
    return {f"{rule.name}/{name}": value for name, value in metrics.items()}


def step_warnings(metrics: Mapping[str, float]) -> list[str]:
    """What a step's metrics say against its weights, whatever rule they are of: one line each.

    >>> step_warnings({"shear/nonfinite_rollouts": 0.0, "mine/unconverged_fraction": 0.25})
    ['mine: 25.00% of the transport problems did not reach their tolerance']
    """
    problems = {
        "nonfinite_rollouts": "{:.0f} rollouts with NaN or infinite hidden states keep weight 1 and oppose nobody",
        "unconverged_fraction": "{:.2%} of the transport problems did not reach their tolerance",
    }
    named = [(*name.split("/", 1), value) for name, value in metrics.items()]
    return [f"{rule}: {problems[what].format(value)}" for rule, what, value in named if value and what in problems]
