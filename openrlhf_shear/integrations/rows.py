"""From the rollouts that a process has of a step to their credit, whatever trains on them.

Groups are whole on a process, or cut: rows of a cut group are exchanged, and every process that has one of them weighs
the group. The credit of all groups, kilobytes, then goes to all processes: what a rule has to say of a whole step is
the same everywhere. Alone, `gather` is `list`.

Legend: B rows of this process, A columns of a mask, T_i response tokens of rollout i.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from openrlhf_shear.config.names import parse_rule
from openrlhf_shear.config.spec import OutcomeConfig, SearchConfig, credit_spec
from openrlhf_shear.credit.apply import weighed
from openrlhf_shear.credit.groups import step_metrics
from openrlhf_shear.credit.registry import Rule, load_rule
from openrlhf_shear.credit.rule import CreditRule, GroupCredit, RolloutGroup
from openrlhf_shear.rollouts.columns import token_texts

Gather = Callable[[list], list]  # of lists, those of all processes in their order, joined


@dataclass(frozen=True)
class Row:
    """One rollout, as a process has it."""

    rollout: int  # its number over all processes
    group: Hashable  # which prompt it answers
    reward: float  # NaN where it failed
    correct: bool | None  # None where the reward failed
    length: int  # T_i
    tensors: Mapping[str, object]  # by the names of the rule's needs: a tensor (T_i, ...), or T_i texts

    def to(self, device: torch.device | str) -> "Row":
        """The same with its hidden states elsewhere: all else is on the CPU."""
        states = self.tensors.get("hidden_states")
        return self if states is None else replace(self, tensors={**self.tensors, "hidden_states": states.to(device)})


def made_rule(credit: str | Rule, where: str) -> Rule:
    """A rule by its name and knobs (`config.names`), or the rule itself.

    Raises ValueError: there is no such rule or knob, or it needs a process reward model, which only the fork runs.
    """
    rule = load_rule(credit_spec(parse_rule(credit), {}, SearchConfig())) if isinstance(credit, str) else credit
    if "prm_scores" in rule.needs:
        raise ValueError(
            f"{where}: {rule.name} needs a process reward model, which only the cluster fork runs; use shear-train "
            f"with --prm.model_name_or_path"
        )
    return rule


def outcomes(scores: Sequence[float], threshold: float) -> list[bool | None]:
    """Whether each score is that of a correct rollout; None where it is NaN: a reward failed. ValueError where the
    threshold is no number.
    """
    OutcomeConfig(threshold)
    return [None if math.isnan(score) else score >= threshold for score in scores]


def of_responses(
    needs: frozenset[str],
    mask: torch.Tensor,
    tokenizer,
    ids: torch.Tensor,
    states: Sequence[torch.Tensor] | None,
    log_probs: torch.Tensor | None,
    entropies: torch.Tensor | None,
) -> list[dict[str, object]]:
    """The `Row.tensors` of B rows.

    Args:
        mask: (B, A) bool, the response tokens.
        ids: (B, A) int64.
        states: B of (T_i, d) on any device; None where the rule does not need them, as of
        log_probs, entropies: (B, A), any float dtype.
    """

    def kept(values: torch.Tensor | None) -> list | None:
        rows = None if values is None else zip(values.cpu(), mask.cpu().bool(), strict=True)
        return rows and [(row.float() if row.is_floating_point() else row)[keep] for row, keep in rows]

    columns = {"hidden_states": states, "log_probs": kept(log_probs), "entropies": kept(entropies)}
    columns["token_ids"] = kept(ids)
    if "token_texts" in needs:
        columns["token_texts"] = [tuple(token_texts(tokenizer, row.tolist())) for row in columns["token_ids"]]
    return [{name: columns[name][row] for name in needs} for row in range(len(mask))]


def credited_groups(
    rule: CreditRule, rows: Sequence[Row], step: int = 1, gather: Gather = list
) -> tuple[list[GroupCredit], dict[str, float]]:
    """The credit of every group of the step, for `credit.apply.token_advantages`, and the step's `RULE/...` metrics:
    the same on every process.

    Args:
        step: of the training, from 1.
        gather: called by every process equally often.

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
    made = [weighed(rule, *_group(rule, numbers[group], ours, step, device))[0] for group, ours in members.items()]
    groups = gather([credit for credit in made if credit.rollouts[0] in own])
    seconds = max(gather([sum(credit.seconds for credit in made)]))
    return groups, step_metrics(rule, groups, seconds)


def failed_of(groups: Sequence[GroupCredit]) -> set[int]:
    """The rollouts without a reward."""
    return {i for group in groups for i, value in zip(group.rollouts, group.rewards, strict=True) if math.isnan(value)}


def _group(
    rule: CreditRule, number: int, members: Sequence[Row], step: int, device: torch.device
) -> tuple[RolloutGroup, list[int]]:
    """A group, its rollouts in their order, and their numbers."""
    members = sorted((row.to(device) for row in members), key=lambda row: row.rollout)
    columns = {name: tuple(row.tensors[name] for row in members) for name in rule.needs}
    facts = (tuple(getattr(row, name) for row in members) for name in ("reward", "correct", "length"))
    return RolloutGroup(number, *facts, step=step, **columns), [row.rollout for row in members]


def _device(rows: Sequence[Row]) -> torch.device:
    """Where the hidden states of these rows are."""
    states = (row.tensors.get("hidden_states") for row in rows)
    return next((one.device for one in states if one is not None), torch.device("cpu"))
