"""Weights of rules on groups of given responses, through the same `credit.apply` as in training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit.rule import CreditRule, RolloutGroup, UpdateRule
from openrlhf_shear.lab.credit import controlled
from openrlhf_shear.lab.offline.reading import ResponseReading
from openrlhf_shear.lab.offline.responses import NO_ERROR, Response
from openrlhf_shear.lab.offline.steps import StepTrace
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import Variant
from openrlhf_shear.rollouts.columns import token_texts

GIVEN = frozenset({"hidden_states", "log_probs", "entropies", "token_ids", "token_texts"})
# what a rule's name leaves out is as in training
DEFAULTS = {name: getattr(ShearConfig(), name) for name in ("window", "stride", "epsilon_rel")}


@dataclass(frozen=True)
class ReadGroup:
    """Responses to one problem, and a model's readings of them."""

    problem: int  # its number, by which intervals resample
    member: int  # number of this group among those of the same problem
    responses: Sequence[Response]
    readings: Sequence[ResponseReading]


def rule_of(variant: Variant) -> CreditRule:
    """Make a variant's rule.

    Raises ValueError: there is no such rule, it acts in the update, or it needs what is not there offline.
    """
    rule, where = variant.rule(LabSettings(**DEFAULTS)), f"--rules {variant.name}"
    if isinstance(rule, UpdateRule):
        raise ValueError(f"{where}: it acts in the update, and nothing is updated offline; leave it out")
    if missing := sorted(set(rule.needs) - GIVEN):
        raise ValueError(f"{where}: it needs {', '.join(missing)}, which is not there offline; leave it out")
    return rule


def traces_of(rule: CreditRule, control: str | None, group: ReadGroup, tokenizer, seed: int) -> list[StepTrace]:
    """Return a group's weights: the factors on an advantage of 1 of right responses and -1 of wrong responses.

    Args:
        control: as in `lab.credit.controlled`; `seed` is that of its randomness.

    Raises CreditRuleError: the rule failed.
    """
    responses = group.responses
    rows = _weights(rule, control, group, [response.correct for response in responses], tokenizer, seed)
    return [_trace(group, i, row) for i, row in enumerate(rows)]


def against_same_outcome(rule: CreditRule, group: ReadGroup, tokenizer) -> list[StepTrace]:
    """Return the weights of each marked response where the group's other *wrong* responses are called right.

    A rule that compares a response with those of the other outcome then compares it with those of the same outcome. A
    group with a single wrong response has none.

    Raises CreditRuleError: the rule failed.
    """
    wrong = [i for i, response in enumerate(group.responses) if not response.correct]
    if len(wrong) < 2:
        return []
    own = replace(group, responses=[group.responses[i] for i in wrong], readings=[group.readings[i] for i in wrong])
    traces = []
    for i, response in enumerate(own.responses):
        if response.is_marked:
            rows = _weights(rule, None, own, [j != i for j in range(len(wrong))], tokenizer, 0)
            traces.append(_trace(own, i, rows[i]))
    return traces


def _weights(
    rule: CreditRule, control: str | None, group: ReadGroup, correct: Sequence[bool], tokenizer, seed: int
) -> list[np.ndarray]:
    readings = group.readings
    ids = [reading.token_ids for reading in readings]
    values = {
        "hidden_states": [reading.states for reading in readings],
        "log_probs": [reading.log_probs for reading in readings],
        "entropies": [reading.entropies for reading in readings],
        "token_ids": ids,
    }
    inputs = {name: tuple(each) for name, each in values.items() if name in rule.needs}
    if "token_texts" in rule.needs:
        inputs["token_texts"] = tuple(tuple(token_texts(tokenizer, each.tolist())) for each in ids)
    known = RolloutGroup(group.problem, tuple(map(float, correct)), tuple(correct), tuple(map(len, ids)), **inputs)
    base = [1.0 if outcome else -1.0 for outcome in correct]
    advantages = controlled(rule, control, [known], base, seed).advantages
    return [(row * sign).numpy() for row, sign in zip(advantages, base, strict=True)]


def _trace(group: ReadGroup, i: int, weights: np.ndarray) -> StepTrace:
    response, known = group.responses[i], (str(group.problem), group.responses[i].correct, weights)
    if response.label in (None, NO_ERROR):
        return StepTrace(*known, None, None, group.member)
    step = group.readings[i].step(response.label)
    return StepTrace(*known, step.start, step.stop, group.member)
