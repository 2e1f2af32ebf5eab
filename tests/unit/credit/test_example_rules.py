"""The rules of `examples/rules`, which blame less than the whole rollout, against slow float64 loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import cases

from examples.rules.change_rule import ChangeRule
from examples.rules.contrast_rule import ContrastRule
from examples.rules.discriminant_rule import DiscriminantRule
from examples.rules.excess_rule import ExcessRule
from examples.rules.matched_odds import MatchedOddsRule
from examples.rules.number_lines_rule import NumberLinesRule
from examples.rules.onset_rule import OnsetRule
from openrlhf_shear.config.shear import ErrorOddsConfig
from openrlhf_shear.credit import RolloutGroup, shear_weights
from openrlhf_shear.credit.checks import checked_credits
from openrlhf_shear.credit.rules.error_odds import ErrorOddsRule

RULES = (ExcessRule, OnsetRule, ChangeRule)
NEEDED = ("hidden_states", "log_probs", "entropies")
NOISE = 1e-5  # float32 sums of at most 40 numbers near 1, and exp of odds up to 20


@pytest.fixture(scope="module")
def group():
    torch.manual_seed(3)
    lengths = (25, 31, 40, 1, 18)
    return RolloutGroup(
        0,
        rewards=(1.0, 0.0, 0.0, 0.0, 1.0),
        correct=(True, False, False, False, True),
        lengths=lengths,
        hidden_states=tuple(torch.randn(length, 6).cumsum(0) for length in lengths),
        log_probs=tuple(-torch.rand(length) * 4 for length in lengths),
        entropies=tuple(torch.rand(length) * 2 for length in lengths),
    )


def span_knobs(rule):
    return getattr(rule.config, "shear", rule.config)


def omega(group, rule):
    return [w.double().tolist() for w in shear_weights(group.hidden_states, group.correct, span_knobs(rule)).weights]


def mean(values):
    return sum(values) / len(values)


def scaled(scores):
    most = max([*scores, 1e-6])
    return [score / most for score in scores]


def excess(group, i, rule):
    pairs = zip(group.log_probs[i].tolist(), group.entropies[i].tolist(), strict=True)
    return scaled([max(-p - h, 0) for p, h in pairs])


def rise(weights, t, before, after):
    return max(mean(weights[t : t + after]) - mean(weights[max(t - before, 0) : t]), 0) if t else 0.0


def onset(group, i, rule):
    weights, log_probs = omega(group, rule)[i], group.log_probs[i].tolist()
    return scaled([rise(weights, t, 8, 4) * min(-p, 3) for t, p in enumerate(log_probs)])


def change(group, i, rule):
    return changed(omega(group, rule)[i], group.log_probs[i].tolist(), rule)


def changed(signal, log_probs, rule):
    odds = []
    for t, p in enumerate(log_probs):
        apart = mean(signal[t:]) - mean(signal[:t]) if t else 0.0
        z = apart * math.sqrt(t * (len(signal) - t) / len(signal))
        odds.append(max(-p, 1e-3) ** rule.config.surprisal * math.exp(rule.config.rise * z))
    return [value / sum(odds) for value in odds]


@pytest.mark.parametrize(("kind", "oracle"), zip(RULES, (excess, onset, change), strict=True))
def test_incorrect_rollouts_get_the_formula_and_correct_ones_keep_1(group, kind, oracle):
    rule = kind()
    weights = checked_credits(rule, [group])[0].weights
    for i, correct in enumerate(group.correct):
        expected = [1.0] * group.lengths[i] if correct else oracle(group, i, rule)
        assert weights[i].tolist() == pytest.approx(expected, abs=NOISE), (kind.name, i)
        assert weights[i].min() >= 0 and weights[i].max() <= 1 + 1e-6


@pytest.mark.parametrize("kind", (*RULES, ContrastRule, DiscriminantRule))
@pytest.mark.parametrize("outcomes", [(False,) * 5, (True,) * 5, (None, False, None, True, True), (None,) * 5])
def test_any_outcomes_give_finite_weights_and_an_empty_rollout_none(group, kind, outcomes):
    empty = {name: (*getattr(group, name)[:4], getattr(group, name)[4][:0]) for name in sorted(kind().needs)}
    for changes in ({}, {"lengths": (25, 31, 40, 1, 0)} | empty):
        weights = checked_credits(kind(), [replace(group, correct=outcomes, **changes)])[0].weights
        for weight, outcome in zip(weights, outcomes, strict=True):
            assert outcome is False or (weight == 1).all()


@pytest.mark.parametrize(*cases("credit", "test_lines_with_numbers_are_blamed"))
def test_lines_with_numbers_are_blamed(correct, step, texts, expected):
    group = RolloutGroup(0, (0.0,), (correct,), (len(texts),), token_texts=(texts,), step=step)
    credit = checked_credits(NumberLinesRule(over=10), [group])[0]
    assert credit.weights[0].tolist() == expected and credit.metrics == {"other_weight": 1 - min(step / 10, 1)}


@pytest.mark.parametrize(("own", "surprisal"), [(1.0, 4.0), (0.5, 0.0), (0.0, 2.0)])
def test_the_contrast_is_with_other_incorrect_rollouts(group, own, surprisal):
    """Distances in units of the group's mean norm."""
    rule = ContrastRule(rise=3.0, own=own, surprisal=surprisal, window=6, stride=2)
    found = checked_credits(rule, [group])[0].weights
    far = shear_weights(group.hidden_states, group.correct, rule.config.shear)
    wrong = [i for i, correct in enumerate(group.correct) if not correct]
    for i in wrong:
        pool = [i, *(j for j in wrong if j != i)]
        near = shear_weights([group.hidden_states[j] for j in pool], [j != i for j in pool], rule.config.shear)
        pairs = zip(far.weights[i].double().tolist(), near.weights[0].double().tolist(), strict=True)
        x = [f - own * near.mean_norm / far.mean_norm * n for f, n in pairs]
        assert found[i].tolist() == pytest.approx(changed(x, group.log_probs[i].tolist(), rule), abs=NOISE)
    assert all((found[i] == 1).all() for i, correct in enumerate(group.correct) if correct)


def test_a_contrast_without_another_incorrect_rollout_is_the_change_alone(group):
    two = replace(group, **{name: getattr(group, name)[:2] for name in ("rewards", "correct", "lengths", *NEEDED)})
    alone, changes = (kind.credit(two).weights[1] for kind in (ContrastRule(), ChangeRule()))
    assert torch.equal(alone, changes) and alone.sum().item() == pytest.approx(1.0, abs=NOISE)


def test_the_discriminant_is_fisher_s_of_the_other_rollouts(group):
    rule = DiscriminantRule(rise=0.7, ridge=0.2)
    found = checked_credits(rule, [group])[0]
    states = [h.double().numpy() for h in group.hidden_states]
    for i in (1, 2, 3):
        sides = [np.concatenate([states[j] for j in side if j != i]) for side in ((0, 4), (1, 2, 3))]
        total = sum(len(side) for side in sides)
        within = sum(np.cov(side.T, bias=True) * len(side) for side in sides) / total
        damped = within + 0.2 * np.trace(within) / len(within) * np.eye(len(within))
        direction = np.linalg.inv(damped) @ (sides[1].mean(0) - sides[0].mean(0))
        middle = (sides[0].mean(0) + sides[1].mean(0)) / 2
        x = [float((h - middle) @ direction / math.sqrt(direction @ within @ direction)) for h in states[i]]
        assert found.weights[i].tolist() == pytest.approx(changed(x, group.log_probs[i].tolist(), rule), abs=NOISE)
    assert found.metrics["fitted"] == 1.0


def test_a_discriminant_needs_others_of_both_kinds(group):
    two = replace(group, **{name: getattr(group, name)[:2] for name in ("rewards", "correct", "lengths", *NEEDED)})
    credit = checked_credits(DiscriminantRule(), [two])[0]
    surprisal = [max(-p, 1e-3) ** 4 for p in group.log_probs[1].tolist()]
    assert credit.metrics["fitted"] == 0.0
    assert credit.weights[1].tolist() == pytest.approx([s / sum(surprisal) for s in surprisal], abs=NOISE)


def test_the_matched_control_has_the_blame_and_praise_of_error_odds_in_each_group_and_no_place(group):
    knobs = {"surprisal": 4, "entropy": 0, "rise": 0}
    odds = ErrorOddsRule(ErrorOddsConfig(**knobs)).credit(group).weights
    even = MatchedOddsRule(**knobs).credit(group).weights
    for side in (True, False):
        of = [i for i, correct in enumerate(group.correct) if correct is side]
        total = math.fsum(weight for i in of for weight in odds[i].double().tolist())
        expected = total / sum(group.lengths[i] for i in of)
        for i in of:
            assert even[i].tolist() == pytest.approx([expected] * group.lengths[i], rel=NOISE)
    assert max(odds[1]) > 2 * max(even[1]) > 0
