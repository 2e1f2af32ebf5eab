"""From the rows that a process has of a step to their token advantages, whatever trains on them.

Groups are whole on a process, or cut: rows of a cut group are exchanged, and every process that has one of them weighs
the group. The credit of all groups, kilobytes, then goes to all processes: what a rule has to say of a whole step is
the same everywhere.

Legend: B rows of this process, A columns of the mask, T_i response tokens of rollout i.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch

from openrlhf_shear.config.names import parse_rule
from openrlhf_shear.config.spec import OutcomeConfig, SearchConfig, credit_spec
from openrlhf_shear.credit.apply import token_advantages
from openrlhf_shear.credit.groups import CreditRequest, GroupCollector, step_metrics
from openrlhf_shear.credit.registry import Rule, load_rule
from openrlhf_shear.credit.rule import CreditRule
from openrlhf_shear.rollouts.columns import token_texts

Gather = Callable[[list], list]  # of lists, those of all processes in their order, joined; `list` where there is one


def made_rule(credit: str | Rule, where: str) -> Rule:
    """A rule by its name and knobs (`config.names`), or the rule itself.

    Raises ValueError: there is no such rule or knob, or it needs a process reward model, which only the fork runs.
    """
    rule = credit
    if isinstance(credit, str):
        rule = load_rule(credit_spec(parse_rule(credit), {}, SearchConfig()))
    if "prm_scores" in rule.needs:
        raise ValueError(
            f"{where}: {rule.name} needs a process reward model, which only the cluster fork runs; use shear-train "
            f"with --prm.model_name_or_path"
        )
    return rule


def outcomes(scores: Sequence[float], threshold: float) -> tuple[bool | None, ...]:
    """Whether each score is that of a correct rollout; None where it is NaN, so that a reward failed."""
    OutcomeConfig(threshold)  # ValueError where it is none
    return tuple(None if math.isnan(score) else score >= threshold for score in scores)


def by_row(
    needs: frozenset[str],
    mask: torch.Tensor,
    tokenizer,
    ids: torch.Tensor,
    states: Sequence[torch.Tensor] | None,
    log_probs: torch.Tensor | None,
    entropies: torch.Tensor | None,
) -> dict[str, list]:
    """What `GroupCollector.add` takes of B rows: by the names of a rule's needs a tensor (T_i, ...) a row.

    Args:
        mask: (B, A) bool, the response tokens.
        ids: (B, A) int64.
        states: B of (T_i, d) on any device, or None where the rule does not need them; likewise
        log_probs, entropies: (B, A), any float dtype.
    """
    rows = {"hidden_states": None if states is None else list(states)}
    for name, values in (("log_probs", log_probs), ("entropies", entropies)):
        rows[name] = None if values is None else _kept(values.float().cpu(), mask)
    rows["token_ids"] = _kept(ids.cpu(), mask)
    if "token_texts" in needs:
        rows["token_texts"] = [tuple(token_texts(tokenizer, row.tolist())) for row in rows["token_ids"]]
    return {name: rows[name] for name in needs}


def _kept(values: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    return [row[keep] for row, keep in zip(values, mask.cpu().bool(), strict=True)]


def credited_rows(
    rule: CreditRule,
    request: CreditRequest,
    mask: torch.Tensor,
    base: torch.Tensor,
    tensors: Mapping[str, Sequence],
    gather: Gather = list,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The token advantages of this process' rows, and the step's `RULE/...` metrics, the same on every process.

    Args:
        request: of the rows; `rollouts` are numbered over all processes.
        mask: (B, A) bool, the response tokens.
        base: (B, A) advantages before the rule, any float dtype.
        tensors: as `by_row` gives them.
        gather: called by every process equally often.

    Returns:
        (B, A): `base` times the rule's weights, or its own advantages, at the response tokens, `base` elsewhere.

    Raises:
        CreditRuleError: the rule failed.
        RuntimeError: rows of a group are missing.
    """
    lengths = mask.sum(1).tolist()
    collector = GroupCollector(rule)
    collector.add(request, lengths, tensors)
    for theirs in _exchanged(request, lengths, tensors, gather):
        collector.add(*theirs)
    credits = collector.take()
    own = set(request.rollouts)
    groups = gather([credit for credit in credits if min(credit.rollouts) in own])
    seconds = max(gather([sum(credit.seconds for credit in credits)]))
    failed = {
        i for group in groups for i, reward in zip(group.rollouts, group.rewards, strict=True) if reward != reward
    }
    kept = mask.bool()
    rows = {i: base[row, kept[row]] for row, i in enumerate(request.rollouts)}
    tokens = token_advantages(rule, groups, {i: values.cpu() for i, values in rows.items()}, failed)
    advantages = base.clone()
    for row, i in enumerate(request.rollouts):
        advantages[row, kept[row]] = tokens[i].advantages.to(base.device)
    return advantages, step_metrics(rule, groups, seconds)


def _exchanged(request: CreditRequest, lengths: Sequence[int], tensors: Mapping[str, Sequence], gather: Gather):
    """What `GroupCollector.add` takes of the rows of other processes whose group has rows here too."""
    here = Counter(request.groups)
    cut = {group for group, count in here.items() if count < request.group_size}
    names = ("rollouts", "groups", "rewards", "correct")
    rows = [
        {name: getattr(request, name)[row] for name in names}
        | {"length": lengths[row], "tensors": {name: _on(values[row], "cpu") for name, values in tensors.items()}}
        for row, group in enumerate(request.groups)
        if group in cut
    ]
    own = set(request.rollouts)
    theirs = [row for row in gather(rows) if row["groups"] in cut and row["rollouts"] not in own]
    if not theirs:
        return
    asked = CreditRequest(
        **{name: tuple(row[name] for row in theirs) for name in names}, group_size=request.group_size, step=request.step
    )
    devices = {name: getattr(values[0], "device", None) for name, values in tensors.items()}
    moved = {name: [_on(row["tensors"][name], device) for row in theirs] for name, device in devices.items()}
    yield asked, [row["length"] for row in theirs], moved


def _on(value, device):
    return value.to(device) if isinstance(value, torch.Tensor) else value
