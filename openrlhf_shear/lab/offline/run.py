"""The gate and the comparison: each group is read, given to every rule, and then only its weights are kept."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from openrlhf_shear.credit.rule import CreditRule
from openrlhf_shear.lab.offline.corruption import Planted
from openrlhf_shear.lab.offline.credit import ReadGroup, against_same_outcome, rule_of, traces_of
from openrlhf_shear.lab.offline.reading import Reader
from openrlhf_shear.lab.offline.responses import ResponseGroup
from openrlhf_shear.lab.offline.steps import StepTrace, lift, lift_differences, step_placement
from openrlhf_shear.lab.variants import Variant
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap

LEAST_LIFT = 1.5  # of the gate
Rules = Mapping[Variant, CreditRule]


@dataclass
class Weighed:
    """Weights of a rule on all groups: `own` for the question, `other` for its control."""

    own: list[StepTrace] = field(default_factory=list)
    # of the comparison: against responses of the same outcome; of the gate: with the number unchanged
    other: list[StepTrace] = field(default_factory=list)


def rules_of(variants: Sequence[Variant]) -> dict[Variant, CreditRule]:
    """Make the rules; ValueError for a rule that cannot be used offline."""
    return {variant: rule_of(variant) for variant in variants}


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
    differences: `lift_differences`.
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
    return Analysis({"rules": placed, "differences": lift_differences(own, bootstrap)})


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
