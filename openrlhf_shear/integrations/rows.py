"""Credit of the rollouts that a process has of a step, for any trainer.

A group is whole on a process, or cut between processes. The processes exchange the rows of cut groups, and every
process with rows of a group weighs the group. The credit of all groups, 4 bytes a token, then goes to all processes. So
a rule's results over a whole step are the same everywhere. For a single process, `gather` is `list`.

Legend: B rows of this process, A columns of a mask, T_i response tokens of rollout i.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from openrlhf_shear.config.names import parse_rule
from openrlhf_shear.config.spec import credit_spec
from openrlhf_shear.credit.apply import weighed
from openrlhf_shear.credit.captured import turn_numbers
from openrlhf_shear.credit.groups import step_metrics
from openrlhf_shear.credit.registry import Rule, load_rule
from openrlhf_shear.credit.rule import OF_ROLLOUTS, CreditRule, GroupCredit, RolloutGroup
from openrlhf_shear.rollouts.columns import token_texts

_STATES = ("hidden_states", "source_states")
Gather = Callable[[list], list]  # takes this process' list, returns those of all processes joined, in their order


@dataclass(frozen=True)
class Row:
    """A rollout on a process."""

    rollout: int  # its number over all processes
    group: Hashable  # identifies the prompt that it answers
    reward: float  # NaN if the reward failed
    correct: bool | None  # None if the reward failed
    length: int  # T_i
    tensors: Mapping[str, object]  # by the names of the rule's needs: a tensor (T_i, ...), or T_i texts

    def to(self, device: torch.device | str) -> "Row":
        """Return the row with its states on `device`; everything else is on the CPU."""
        moved = {name: values.to(device) for name, values in self.tensors.items() if name in _STATES}
        return replace(self, tensors={**self.tensors, **moved})


_EVERYWHERE = frozenset({"hidden_states", "log_probs", "entropies", "token_ids", "token_texts", "turns"})
GIVEN = {"TRL": _EVERYWHERE | {"source_states", "lm_head", "ref_log_probs"}, "verl": _EVERYWHERE}  # of the needs


def rule_of(credit: str | Rule, where: str, trainer: str) -> Rule:
    """Make a rule from its name and knobs (`config.names`); return a rule unchanged.

    Raises ValueError: no rule or knob has this name, or the rule needs something that this trainer, of `GIVEN`, lacks.
    """
    if not isinstance(credit, str | Rule):
        raise ValueError(
            f"{where} must be a rule or its name: got {credit!r}; use e.g. 'shear', or 'uniform' for {trainer}'s own "
            f"advantages"
        )
    rule = load_rule(credit_spec(parse_rule(credit)), where) if isinstance(credit, str) else credit
    if missing := set(rule.needs) - GIVEN[trainer] - {"prm_scores"}:
        raise ValueError(
            f"{where}: {rule.name} needs {', '.join(sorted(missing))}, which it does not get from {trainer}; use "
            f"shear-train"
        )
    if "prm_scores" in rule.needs:
        raise ValueError(
            f"{where}: {rule.name} needs a process reward model, which only the cluster fork runs; use shear-train "
            f"with --prm.model_name_or_path"
        )
    return rule


def rows_of_process(
    first: int,
    groups: Iterable[Hashable],
    scores: Sequence[float],
    threshold: float,
    mask: torch.Tensor,
    tensors: Iterable[Mapping[str, object]],
    deciding: Sequence[float] | None = None,
) -> list[Row]:
    """Return the rows of a process.

    Args:
        first: the number of its first row over all processes.
        groups, scores, tensors: for each row its `Row.group`, `Row.reward` and `Row.tensors`.
        threshold: a rollout counts as correct if its score is at least this.
        mask: (B, A) bool, the response tokens.
        deciding: for each row the reward that is compared with the threshold (default: its score).
    """
    pairs = zip(scores, scores if deciding is None else deciding, strict=True)
    correct = [None if math.isnan(score) or math.isnan(value) else value >= threshold for score, value in pairs]
    facts = zip(groups, scores, correct, mask.sum(1).tolist(), tensors, strict=True)
    return [Row(first + row, *of_row) for row, of_row in enumerate(facts)]


def of_responses(
    needs: frozenset[str],
    mask: torch.Tensor,
    tokenizer,
    ids: torch.Tensor,
    states: Mapping[str, Sequence[torch.Tensor]],
    **values: torch.Tensor | None,
) -> list[dict[str, object]]:
    """Return the `Row.tensors` of B rows.

    Args:
        mask: (B, A) bool, the response tokens.
        ids: (B, A) int64.
        states: by their names in the rule's needs, B tensors (T_i, d) on any device.
        values: by their names in the rule's needs, (B, A) of any float dtype.
    """

    def response_rows(values: torch.Tensor | None) -> list | None:
        rows = None if values is None else zip(values.cpu(), mask.cpu().bool(), strict=True)
        return rows and [(row.float() if row.is_floating_point() else row)[keep] for row, keep in rows]

    columns = states | {name: response_rows(rows) for name, rows in (values | {"token_ids": ids}).items()}
    if "turns" in needs:
        columns["turns"] = [turn_numbers(row) for row in mask.cpu().bool()]
    if "token_texts" in needs:
        columns["token_texts"] = [tuple(token_texts(tokenizer, row.tolist())) for row in columns["token_ids"]]
    return [{name: columns[name][row] for name in needs if name in OF_ROLLOUTS} for row in range(len(mask))]


def credited_groups(
    rule: CreditRule, rows: Sequence[Row], step: int = 1, gather: Gather = list, shared: Mapping[str, object] = {}
) -> tuple[list[GroupCredit], dict[str, float]]:
    """Return the credit of every group of the step, for `credit.apply.token_advantages`, and the `RULE/...` metrics.

    The result is the same on every process.

    Args:
        step: of the training, from 1.
        gather: every process calls it equally often.
        shared: by their names in the rule's needs, what is not a rollout's.

    Raises CreditRuleError: the rule failed.
    """
    sizes = Counter(gather([row.group for row in rows]))
    numbers = {group: number for number, group in enumerate(sizes)}
    here = Counter(row.group for row in rows)
    cut = {group for group, count in here.items() if count < sizes[group]}
    own = {row.rollout for row in rows}
    exchanged = gather([row.to("cpu") for row in rows if row.group in cut])
    members: dict[Hashable, list[Row]] = {group: [] for group in here}
    for row in (*rows, *(row for row in exchanged if row.group in cut and row.rollout not in own)):
        members[row.group].append(row)
    device = _device(rows)
    pairs = [_group(rule, numbers[group], ours, step, device) for group, ours in members.items()]
    whole, rollouts = [replace(group, **shared) for group, _ in pairs], [rollouts for _, rollouts in pairs]
    # A rank may have padding alone.
    credits = [credit for credit, _ in (weighed(rule, whole, rollouts) if whole else ())]
    groups = gather([credit for credit in credits if credit.rollouts[0] in own])
    seconds = max(gather([sum(credit.seconds for credit in credits)]))
    return groups, step_metrics(rule, groups, seconds)


def failed_of(groups: Sequence[GroupCredit]) -> set[int]:
    """Return the rollouts without a reward."""
    return {i for group in groups for i, value in zip(group.rollouts, group.rewards, strict=True) if math.isnan(value)}


def _group(
    rule: CreditRule, number: int, members: Sequence[Row], step: int, device: torch.device
) -> tuple[RolloutGroup, list[int]]:
    """Make a group, with its rollouts in order, and return it with their numbers."""
    members = sorted((row.to(device) for row in members), key=lambda row: row.rollout)
    columns = {name: tuple(row.tensors[name] for row in members) for name in rule.needs if name in OF_ROLLOUTS}
    facts = (tuple(getattr(row, name) for row in members) for name in ("reward", "correct", "length"))
    return RolloutGroup(number, *facts, step=step, **columns), [row.rollout for row in members]


def _device(rows: Sequence[Row]) -> torch.device:
    """Return the device of the states; the CPU if there are none."""
    states = (row.tensors[name] for row in rows for name in _STATES if name in row.tensors)
    return next((values.device for values in states), torch.device("cpu"))
