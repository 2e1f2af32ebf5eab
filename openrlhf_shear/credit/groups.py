"""Whole groups out of micro-batches: collect what the rule needs of one, weigh its tokens, keep only the weights."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from openrlhf_shear.credit.apply import weighed
from openrlhf_shear.credit.checks import CreditRuleError, checked_evidence
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


class GroupCollector:
    """Holds what a rule needs until a group is complete: of groups dealt whole to a rank, one at most."""

    def __init__(self, rule: CreditRule):
        self._rule = rule
        self._open: dict[int, dict[int, dict[str, object]]] = {}  # group -> rollout -> its part of a RolloutGroup
        self._done: list[GroupCredit] = []

    def add(self, request: CreditRequest, lengths: Sequence[int], tensors: Mapping[str, Sequence]) -> None:
        """Take in one micro-batch.

        Args:
            lengths: response tokens T_i of each row.
            tensors: by the names of `rule.needs` but for PRM scores, a row each: a tensor (T_i, ...), on any device, or
                the texts of its T_i tokens.

        Raises CreditRuleError: the rule fails on a group that is complete now.
        """
        columns = {"rewards": request.rewards, "correct": request.correct, "lengths": lengths, **tensors}
        if "prm_scores" in self._rule.needs:
            columns["prm_scores"] = request.prm_scores
        for row, (rollout, group) in enumerate(zip(request.rollouts, request.groups, strict=True)):
            members = self._open.setdefault(group, {})
            members[rollout] = {name: values[row] for name, values in columns.items()}
            if len(members) == request.group_size:
                self._done.append(self._weigh(group, self._open.pop(group), request))

    def take(self) -> list[GroupCredit]:
        """All finished groups, which are then forgotten. RuntimeError: one is incomplete, so it was spread or lost."""
        if self._open:
            sizes = {group: len(members) for group, members in self._open.items()}
            self._open.clear()
            raise RuntimeError(f"incomplete groups on this rank (group: rollouts seen): {sizes}")
        done, self._done = self._done, []
        return done

    def _weigh(self, number: int, members: dict[int, dict[str, object]], request: CreditRequest) -> GroupCredit:
        rollouts = tuple(sorted(members))
        names = ("rewards", "correct", "lengths", *self._rule.needs)
        columns = {name: tuple(members[i][name] for i in rollouts) for name in names}
        group = RolloutGroup(number, step=request.step, **columns)
        for tensor in members[rollouts[0]].values():
            if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                torch.cuda.synchronize(tensor.device)  # the forward pass is not the credit stage's time
        group_credit, credit = weighed(self._rule, group, rollouts)
        if not request.evidence:
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
