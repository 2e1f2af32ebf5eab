"""Laws of all built-in rules, written once and run over their table."""

import math
from dataclasses import replace

import pytest
import torch
from cases import cases
from rule_groups import NAMES, NAN, chosen, credit_of, full_group, random_group, rule_of

from openrlhf_shear.config import RULES
from openrlhf_shear.credit import RolloutGroup
from openrlhf_shear.credit.apply import token_advantages, weighed
from openrlhf_shear.credit.baselines import outcome_advantages
from openrlhf_shear.credit.checks import checked_credits, without_nonfinite

FLOATS = ("hidden_states", "source_states", "log_probs", "entropies", "ref_log_probs", "hint_log_probs")
NOISE = 1e-4  # sums in another order; solves of the same problem in another place (0.002 of an epsilon of 0.03)
COMPARE = {"shear", "text", "delta", "nthr"}  # rules of weights that are 1 unless rollouts of both outcomes have tokens
LEARN_NOTHING = {"gtpo", "ktae"}  # rules of advantages that are 0 likewise
SEEDS = range(4)


def named(rules):
    return [name for name in NAMES if name.partition("/")[0] in rules]


def tensors(name, group):
    return credit_of(name, group).tensors()


def trained(name, group):
    """Return the advantages by rollout on which training works, and GRPO's."""
    rule, count = rule_of(name), len(group.lengths)
    ((made, _),) = weighed(rule, [group], [range(count)])
    base = {
        i: a.expand(n) for i, (a, n) in enumerate(zip(outcome_advantages(group.rewards), group.lengths, strict=True))
    }
    failed = [i for i, outcome in enumerate(group.correct) if outcome is None]
    return {i: each.advantages for i, each in token_advantages(rule, [made], base, failed).items()}, base


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_credit_has_a_number_for_each_token_and_leaves_the_group_as_it_was(name, seed):
    group, again = random_group(seed), random_group(seed)
    credit = credit_of(name, group)  # which checks shapes, and that all is finite
    for kind, rows in credit.tensors().items():
        assert all(row.dtype == torch.float32 for row in rows)
        assert kind == "advantages" or all((row >= 0).all() for row in rows), "no weight changes a sign"
    assert all(isinstance(value, float) and math.isfinite(value) for value in credit.metrics.values())
    for need in FLOATS:
        assert all(map(torch.equal, getattr(group, need), getattr(again, need)))
    for rows, other in zip(tensors(name, group).values(), credit.tensors().values(), strict=True):
        assert all(map(torch.equal, rows, other)), "the same group has the same credit"


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_rollouts_does_not_matter(name):
    group, order = random_group(2), [3, 0, 2, 1]
    order += range(4, len(group.lengths))
    for rows, others in zip(tensors(name, group).values(), tensors(name, chosen(group, order)).values(), strict=True):
        for i, other in zip(order, others, strict=True):
            torch.testing.assert_close(other, rows[i], atol=NOISE, rtol=NOISE)


@pytest.mark.parametrize("name", NAMES)
def test_several_groups_have_the_credit_of_each(name):
    groups = [random_group(seed) for seed in SEEDS]
    for group, credit in zip(groups, checked_credits(rule_of(name), groups), strict=True):
        for rows, others in zip(credit.tensors().values(), tensors(name, group).values(), strict=True):
            assert all(map(torch.equal, rows, others))


@pytest.mark.parametrize("name", NAMES)
def test_a_rollout_without_a_reward_counts_nowhere(name):
    group = full_group([4, 7, 5, 3], [1, 0, NAN, 0])
    found, expected = tensors(name, group), tensors(name, chosen(group, [0, 1, 3]))
    for kind, rows in found.items():
        for i, other in zip((0, 1, 3), expected[kind], strict=True):
            torch.testing.assert_close(rows[i], other, atol=NOISE, rtol=NOISE)
        assert kind != "advantages" or not rows[2].any()
    for rows in tensors(name, full_group([2, 1], [NAN, NAN])).values():
        assert [len(row) for row in rows] == [2, 1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lengths", [[0, 0], [1, 1], [1, 1, 1, 0], [4, 0]])
def test_empty_and_one_token_responses_have_credit(name, lengths):
    for rewards in ([1, 0, 0, 1], [0, 1, 1, 0], [1] * 4):
        for rows in tensors(name, full_group(lengths, rewards[: len(lengths)])).values():
            assert [len(row) for row in rows] == lengths


@pytest.mark.parametrize("rewards", [[1, 1, 1], [0, 0, 0], [1, NAN, 1], [NAN] * 3, [1]])
@pytest.mark.parametrize("name", named(COMPARE | LEARN_NOTHING))
def test_a_group_without_both_outcomes_is_left_to_grpo(name, rewards):
    groups = [full_group([3, 1, 4][: len(rewards)], rewards)]
    groups += [full_group([4, 0], [1, 0]), full_group([4, 0], [0, 1])] if name != "ktae" else []
    for group in groups:
        for kind, rows in tensors(name, group).items():
            assert all((row == (kind != "advantages")).all() for row in rows)


@pytest.mark.parametrize(*cases("credit", "test_rules_at_their_neutral_knobs_are_grpo_bit_for_bit"))
def test_rules_at_their_neutral_knobs_are_grpo_bit_for_bit(name):
    for seed in SEEDS:
        found, base = trained(name, random_group(seed))
        assert all(torch.equal(found[i], row) for i, row in base.items())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [name for name in NAMES if RULES[name.partition("/")[0]].traits.kind == "weights"])
def test_training_with_weights_keeps_every_sign(name, seed):
    found, base = trained(name, random_group(seed))
    assert all((found[i] * row >= 0).all() for i, row in base.items())


# ── Numbers that are not finite ──


def broken(value) -> tuple[RolloutGroup, RolloutGroup]:
    """Return a group with rollout 3 without a reward, and one whose rollout 3 has such a number in every input."""
    group = full_group([6, 5, 7, 4], [1, 0, 1, 0])
    bad = {name: (*(rows := getattr(group, name))[:3], rows[3].clone()) for name in FLOATS}
    for rows in bad.values():
        rows[3][2:] = value
    failed = replace(group, rewards=(*group.rewards[:3], NAN), correct=(*group.correct[:3], None))
    return failed, replace(group, **bad)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", NAMES)
def test_others_have_their_credit_beside_a_rollout_that_is_not_finite(name, value):
    failed, bad = broken(value)
    if RULES[name.partition("/")[0]].traits.needs.isdisjoint(FLOATS):
        bad = failed  # nothing that it reads is broken
    for rows, others in zip(tensors(name, bad).values(), tensors(name, failed).values(), strict=True):
        assert all(map(torch.equal, rows[:3], others[:3])) and rows[3].isfinite().all()


CASES = [(name, need) for name in NAMES for need in FLOATS if need in RULES[name.partition("/")[0]].traits.needs]


@pytest.mark.parametrize(("name", "need"), CASES)
def test_a_nan_in_any_one_of_the_needs_of_a_rule_is_seen(name, need):
    failed, bad = broken(math.nan)
    others = dict.fromkeys(
        set(FLOATS) - RULES[name.partition("/")[0]].traits.needs
    )  # a run gives a rule its needs alone
    whole = replace(failed, rewards=bad.rewards, correct=bad.correct, **others)
    given = replace(whole, **{need: getattr(bad, need)})
    for rows, expected in zip(
        tensors(name, given).values(), tensors(name, replace(failed, **others)).values(), strict=True
    ):
        assert all(map(torch.equal, rows[:3], expected[:3])) and all(row.isfinite().all() for row in rows)


def test_a_group_of_finite_numbers_is_unchanged():
    failed, bad = broken(math.nan)
    (same,), (found,) = without_nonfinite([failed]), without_nonfinite([bad])
    assert same is failed
    assert found.correct == failed.correct and math.isnan(found.rewards[3])
    assert found.hidden_states[3].isnan().any() and not found.log_probs[3].any()
