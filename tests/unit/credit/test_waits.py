"""How often the host waits for a CUDA device between sampling and the optimizer step, on a device without a GPU.

`tests/unit/kernels/test_triton.py` counts the waits of the span search.
"""

from dataclasses import fields, replace

import pytest
import torch
from far_device import CUDA, Far, counted_waits, there
from rule_groups import NAMES, full_group, rule_of

from openrlhf_shear.config.names import parse_rule
from openrlhf_shear.config.rules import RULES
from openrlhf_shear.credit import RolloutGroup
from openrlhf_shear.credit.apply import weighed
from openrlhf_shear.credit.captured import response_states
from openrlhf_shear.credit.checks import checked_advantages
from openrlhf_shear.credit.groups import CreditRequest, GroupCollector
from openrlhf_shear.credit.registry import make_rule

STATES = ("hidden_states", "source_states")
SEARCHED = {"shear", "error_odds"}  # whose search runs on the device
# Of a batch of groups: before the rule starts its clock, and the numbers that are not finite. Of each group: the rule.
IN_BATCH, IN_GROUP = 2, {"otb": 1, "nthr": 1, "delta": 1}


def far_group(number: int, rollouts: int, needs: frozenset[str]) -> RolloutGroup:
    """A group as a rank holds it: states and head on the device, everything else on the CPU."""
    rewards = [float(i % 2) for i in range(rollouts)]
    group = full_group([9, 5, *range(4, rollouts + 2)], rewards, number)
    held = {"number", "rewards", "correct", "lengths", "step", *needs}
    columns = {each.name: getattr(group, each.name) if each.name in held else None for each in fields(group)}
    columns |= {name: there(columns[name]) for name in STATES if name in needs}
    if "lm_head" in needs:
        columns["lm_head"] = replace(group.lm_head, weight=Far(group.lm_head.weight))
    return RolloutGroup(**columns | {"number": number})


def collected(rule, groups: list[RolloutGroup]) -> list:
    """Send groups through a rank's collector, and return their credit."""
    shared = {"lm_head": groups[0].lm_head} if "lm_head" in rule.needs else {}
    collector, rollouts = GroupCollector(rule, shared=shared), len(groups[0].lengths)
    collector._late = []
    for group in groups:
        indices = tuple(range(group.number * rollouts, (group.number + 1) * rollouts))
        request = CreditRequest(indices, (group.number,) * rollouts, group.rewards, group.correct, rollouts)
        request = replace(request, prm_scores=group.prm_scores)
        tensors = {name: getattr(group, name) for name in rule.needs if name not in shared}
        collector.add(request, group.lengths, tensors)
    return collector.take()


@pytest.mark.parametrize("name", [name for name in NAMES if name.partition("/")[0] not in {"vine", *SEARCHED}])
def test_the_waits_of_a_rule_do_not_depend_on_the_rollouts(name):
    rule = rule_of(name)
    far = bool({*STATES} & rule.needs)
    for groups, rollouts in ((1, 4), (5, 4), (5, 12)):
        batch = [far_group(number, rollouts, rule.needs) for number in range(groups)]
        with counted_waits() as waits:
            found = collected(rule, batch)
        assert len(found) == groups
        assert sum(waits.values()) == far * (IN_BATCH + groups * IN_GROUP.get(rule.name, 0)), waits
        assert all(row.device.type == "cpu" for each in found for rows in each.tensors().values() for row in rows)


@pytest.mark.parametrize("name", IN_GROUP)
def test_the_device_without_a_gpu_gives_what_the_cpu_gives(name):
    rule, shape = rule_of(name), ([9, 5, 4, 5], [0.0, 1.0, 0.0, 1.0])
    with counted_waits():
        ((far, _),) = weighed(rule, [far_group(0, 4, rule.needs)], [range(4)])
    ((near, _),) = weighed(rule, [full_group(*shape)], [range(4)])
    for rows, others in zip(far.tensors().values(), near.tensors().values(), strict=True):
        assert all(map(torch.equal, rows, others))


@pytest.mark.parametrize("packed", [False, True])
def test_the_states_of_a_pass_are_chosen_without_a_wait(packed):
    attended, actions = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]), torch.tensor([[0, 1, 1], [1, 0, 1]])
    hidden = torch.arange(16.0).view(2, 4, 2)
    hidden = hidden[attended.bool()][None] if packed else hidden
    expected = response_states(hidden, attended, actions, packed)
    with counted_waits() as waits:
        found = response_states(Far(hidden), attended, actions, packed)
    assert not waits and all(row.device == CUDA for row in found)
    assert all(torch.equal(row.near, other) for row, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.traits.kind == "update"])
def test_a_rule_in_the_update_waits_twice_a_micro_batch(name):
    """Once for its metrics, and once to see that its advantages are finite."""
    spec = RULES[name]
    rule = make_rule(parse_rule(name), spec.config() if spec.config else None, "test")
    generator = torch.Generator().manual_seed(0)
    for size in ((2, 5), (8, 30)):
        numbers = [torch.rand(size, generator=generator) for _ in range(4)]
        mask = torch.rand(size, generator=generator) > 0.3
        expected, known = checked_advantages(rule, numbers[0], mask, *numbers[1:])
        with counted_waits() as waits:
            found, metrics = checked_advantages(rule, Far(numbers[0]), Far(mask), *there(numbers[1:]))
        assert sum(waits.values()) == 2, waits
        assert torch.equal(found.near, expected) and metrics == known
