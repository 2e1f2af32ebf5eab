"""The gate and the comparison: each group is read, given to every rule, and then only its weights are kept.

Weights come through the same `credit.apply` as in training.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit.rule import CreditRule, RolloutGroup, UpdateRule
from openrlhf_shear.lab.credit import PERMUTED, controlled, permuted
from openrlhf_shear.lab.offline.reading import Reader, ResponseReading
from openrlhf_shear.lab.offline.responses import NO_ERROR, Planted, Response, ResponseGroup
from openrlhf_shear.lab.offline.steps import StepTrace, at_equal_contrast, lift, lift_differences, step_placement
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import Variant
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap
from openrlhf_shear.rollouts.columns import token_texts

LEAST_LIFT = 1.5  # of the gate
Rules = Mapping[Variant, CreditRule]
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
        control: as in `lab.credit.controlled`; `seed` is that of its randomness. The outcomes of a permuted control
            are neither the group's nor their opposite, so that it needs three responses.

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
    if PERMUTED in (control or "").split("/"):
        same = known.correct, tuple(not outcome for outcome in known.correct)
        seed = next(other for other in count(seed) if permuted(known, other).correct not in same)
    base = [1.0 if outcome else -1.0 for outcome in correct]
    advantages = controlled(rule, control, [known], base, seed).advantages
    return [(row * sign).numpy() for row, sign in zip(advantages, base, strict=True)]


def _trace(group: ReadGroup, i: int, weights: np.ndarray) -> StepTrace:
    response, known = group.responses[i], (str(group.problem), group.responses[i].correct, weights)
    if response.label in (None, NO_ERROR):
        return StepTrace(*known, None, None, group.member)
    step = group.readings[i].step(response.label)
    return StepTrace(*known, step.start, step.stop, group.member)


@dataclass
class Weighed:
    """Weights of a rule on all groups: `own` for the question, `other` for its control."""

    own: list[StepTrace] = field(default_factory=list)
    # of the comparison: against responses of the same outcome; of the gate: with the number unchanged
    other: list[StepTrace] = field(default_factory=list)


def gate(rules: Rules, planted: Iterable[Planted], reader: Reader, seed: int, bootstrap: Bootstrap) -> Analysis:
    """Return whether any rule finds numbers that we changed; controls of rules do not count.

    passed: whether the lift of a rule is at least `LEAST_LIFT`; None where nothing could be changed.
    by: the rule with the largest lift.
    rules: `step_placement` of each rule, with `lift_unchanged`: that of the same step of the same response without a
        change, called wrong.
    """
    weighed = {variant: Weighed() for variant in rules if not variant.control}
    for changed, unchanged in _planted_groups(planted, reader):
        for variant, credit in weighed.items():
            for group, traces in ((changed, credit.own), (unchanged, credit.other)):
                traces += traces_of(rules[variant], None, group, reader.tokenizer, seed)
    placed = {
        variant.name: step_placement(credit.own, bootstrap) | {"lift_unchanged": lift(credit.other, bootstrap)}
        for variant, credit in weighed.items()
    }
    found = {name: each["lift"].value for name, each in placed.items() if each["lift"].value is not None}
    best = max(found, key=found.get, default=None)
    return Analysis(
        {"needed": LEAST_LIFT, "passed": found[best] >= LEAST_LIFT if found else None, "by": best, "rules": placed}
    )


def compare(rules: Rules, groups: Iterable[ResponseGroup], reader: Reader, seed: int, bootstrap: Bootstrap) -> Analysis:
    """Return where the rules put the weight of wrong responses.

    rules: `step_placement` of each rule, with `lift_same_outcome`: that of `against_same_outcome`, for rules without a
        control.
    differences: `lift_differences`; `differences_equal_contrast`: those of the lift at equal contrast.
    """
    weighed = {variant: Weighed() for variant in rules}
    for group in groups:
        read = ReadGroup(group.problem, 0, group.responses, reader.read(group.responses))
        for variant, credit in weighed.items():
            credit.own += traces_of(rules[variant], variant.control, read, reader.tokenizer, seed + group.problem)
            if not variant.control:
                credit.other += against_same_outcome(rules[variant], read, reader.tokenizer)
    placed = {
        variant.name: step_placement(credit.own, bootstrap) | {"lift_same_outcome": lift(credit.other, bootstrap)}
        for variant, credit in weighed.items()
    }
    own = {variant.name: credit.own for variant, credit in weighed.items()}
    equal = {name: at_equal_contrast(traces) for name, traces in own.items()}
    differences = {"differences": own, "differences_equal_contrast": equal}
    return Analysis({"rules": placed, **{name: lift_differences(of, bootstrap) for name, of in differences.items()}})


def _planted_groups(planted: Iterable[Planted], reader: Reader) -> Iterator[tuple[ReadGroup, ReadGroup]]:
    """Yield each pair of groups: with the changed response in place of the original, and the original called wrong.

    No other response of theirs is marked, so that measures see this one alone.
    """
    for member, pair in enumerate(planted):
        responses = [replace(each, label=None) if each.is_marked else each for each in pair.group.responses]
        readings = reader.read(responses)
        unchanged = replace(responses[pair.at], correct=False, label=pair.changed.label)
        for_changed = [*readings[: pair.at], *reader.read([pair.changed]), *readings[pair.at + 1 :]]
        groups = []
        for response, read in ((pair.changed, for_changed), (unchanged, readings)):
            own = [*responses[: pair.at], response, *responses[pair.at + 1 :]]
            groups.append(ReadGroup(pair.group.problem, member, own, read))
        yield tuple(groups)
