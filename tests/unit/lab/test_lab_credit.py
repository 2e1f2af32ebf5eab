"""The lab's token advantages against credit by hand, and the inputs of a rule."""

import torch
from lab_cases import PROMPT, Hand, Maker, Zero

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import Credit, CreditRule, shear_weights
from openrlhf_shear.credit.baselines import group_advantages
from openrlhf_shear.credit.rules.shear import ShearRule
from openrlhf_shear.credit.rules.uniform import UniformRule
from openrlhf_shear.lab.credit import credited, groups, mass_matched, on_incorrect, permuted, shuffled
from openrlhf_shear.lab.policy import Reading


class Rising(CreditRule):
    """A weight that rises, to be shuffled."""

    def credit(self, group):
        return Credit([torch.arange(n) / n for n in group.lengths])


def plain_advantages(rollouts):
    base = tuple(group_advantages(torch.tensor(rollouts.correct).float(), rollouts.group_size).tolist())
    return base, [torch.full((n,), value) for n, value in zip(rollouts.lengths, base, strict=True)]


def test_credit_is_base_times_the_rule_s_weights(rollouts, reading):
    config = ShearConfig(window=8, stride=4, epsilon_rel=0.03)
    got = credited(ShearRule(config), None, rollouts, reading, 0)
    base, plain = plain_advantages(rollouts)
    assert got.base == base and got.seconds > 0
    weights = []
    for first in (0, 4, 8):
        members = slice(first, first + 4)
        weights += shear_weights(reading.states[members], rollouts.correct[members], config).weights
    assert all(torch.equal(row, a * w) for row, a, w in zip(got.advantages, plain, weights, strict=True))
    assert (torch.cat(weights[:8]) != 1).any() and not torch.cat(got.advantages[8:]).any()


def test_negative_advantages_take_negative_weights(rollouts, reading):
    got = credited(Hand(2.0, below=0.5), None, rollouts, reading, 0)
    _, plain = plain_advantages(rollouts)
    for row, before in zip(got.advantages, plain, strict=True):
        assert torch.equal(row, before * (0.5 if before[0] < 0 else 2.0))


def test_a_rule_that_makes_advantages_makes_them_of_the_whole_step(rollouts, reading):
    got = credited(Maker(), None, rollouts, reading, 0).advantages
    ramps = [torch.arange(n, dtype=torch.float32) for n in rollouts.lengths]
    expected = [ramp - torch.cat(ramps).mean() for ramp in ramps]
    assert all(row.dtype == torch.float32 and torch.equal(row, e) for row, e in zip(got, expected, strict=True))


def test_an_update_rule_leaves_the_base(rollouts, reading):
    got = credited(Zero(), None, rollouts, reading, 0)
    assert all(map(torch.equal, got.advantages, plain_advantages(rollouts)[1])) and got.seconds == 0.0


def test_a_control_takes_the_place_of_the_rule_s_advantages(rollouts, reading):
    rule = Rising()
    plain = credited(rule, None, rollouts, reading, 3)
    for control, made in (("shuffled", shuffled), ("matched", mass_matched), ("on_incorrect", on_incorrect)):
        got = credited(rule, control, rollouts, reading, 3).advantages
        assert all(map(torch.equal, got, made(plain.advantages, plain.base, 3)))
        assert not torch.equal(torch.cat(got), torch.cat(plain.advantages))
    got = credited(rule, "on_incorrect/matched", rollouts, reading, 3).advantages  # a control of a control
    wanted = mass_matched(on_incorrect(plain.advantages, plain.base, 3), plain.base, 3)
    other = mass_matched(plain.advantages, plain.base, 3)
    assert all(map(torch.equal, got, wanted)) and not torch.equal(torch.cat(got), torch.cat(other))


def test_a_rule_sees_permuted_outcomes_and_rollouts_keep_their_advantages(rollouts, reading):
    rule = Hand(2.0, below=0.5, needs=("log_probs",))
    got = credited(rule, "permuted", rollouts, reading, 3)
    assert [group.correct for group in rule.seen] == [
        permuted(group, 9 + i).correct for i, group in enumerate(groups(rule, rollouts, reading))
    ]  # 3 groups: seed 3 has the draws 9, 10 and 11
    base, plain = plain_advantages(rollouts)
    wanted = [row * (0.5 if value < 0 else 2.0) for row, value in zip(plain, base, strict=True)]
    assert got.base == base and all(map(torch.equal, got.advantages, wanted))


def test_a_rule_is_given_what_it_needs_and_nothing_else(rollouts, reading):
    rule = Hand(needs={"log_probs", "first_errors"})
    credited(rule, None, rollouts, reading, 0)
    assert [group.number for group in rule.seen] == [0, 1, 2]
    for group, members in zip(rule.seen, rollouts.groups, strict=True):
        assert group.lengths == rollouts.lengths[members] and group.correct == rollouts.correct[members]
        assert group.rewards == tuple(map(float, group.correct))
        assert group.first_errors == rollouts.first_errors[members]
        assert group.hidden_states is group.entropies is None
    row = slice(len(PROMPT) - 1, len(PROMPT) - 1 + rollouts.lengths[6])
    assert torch.equal(rule.seen[1].log_probs[2], reading.log_probs[6, row])
    rule = Hand(needs={"token_ids", "token_texts"})
    credited(rule, None, rollouts, reading, 0, step=7)
    ids, texts = rule.seen[1].token_ids[2], rule.seen[1].token_texts[2]
    assert torch.equal(ids, rollouts.sequences[6, 1:][row]) and len(texts) == rollouts.lengths[6]
    assert "".join(texts) == rollouts.tokenizer.decode(ids) and rule.seen[1].step == 7
    rule = Hand(needs={"entropies", "hidden_states"})
    credited(rule, None, rollouts, reading, 0)
    assert torch.equal(rule.seen[1].entropies[2], reading.entropies[6, row])
    assert torch.equal(rule.seen[1].hidden_states[2], reading.states[6])
    assert rule.seen[0].log_probs is rule.seen[0].token_ids is rule.seen[0].token_texts is None
    assert rule.seen[0].step == 1 and rule.seen[0].first_errors == ()
    without = Reading(reading.log_probs, reading.entropies, None)
    assert credited(UniformRule(), None, rollouts, without, 0).base == plain_advantages(rollouts)[0]
