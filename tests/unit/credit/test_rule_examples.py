"""Worked examples of the rules, and what holds for one rule alone; U is float32's roundoff."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from lab_cases import PROMPT
from rule_groups import NAN, chosen, credit_of, full_group, grpo, in_chunks, random_group, rows_of, rule_of, value_of
from scipy.stats import fisher_exact
from test_rule_formulas import nthr_scores, sides

from openrlhf_shear.credit import RolloutGroup
from openrlhf_shear.credit.apply import weighed
from openrlhf_shear.credit.checks import checked_over_batch
from openrlhf_shear.credit.groups import step_metrics
from openrlhf_shear.credit.logits import LMHead
from openrlhf_shear.credit.rule import StepScores
from openrlhf_shear.credit.rules.entropy_mask import tokens_to_train
from openrlhf_shear.credit.rules.ktae import associations
from openrlhf_shear.credit.rules.otb import energies
from openrlhf_shear.lab import inputs
from openrlhf_shear.tasks.arithmetic.problems import parse_problem
from openrlhf_shear.tasks.arithmetic.task import ArithmeticTask

U = 2**-24
SEEDS = range(6)


def group(correct, **columns) -> RolloutGroup:
    """A group of these outcomes; columns are lists of numbers, by the need."""
    rewards = tuple(NAN if outcome is None else float(outcome) for outcome in correct)
    tensors = {
        name: tuple(torch.tensor(row, dtype=torch.int64 if name == "token_ids" else torch.float32) for row in column)
        for name, column in columns.items()
    }
    return RolloutGroup(0, rewards, tuple(correct), tuple(map(len, next(iter(columns.values())))), **tensors)


# ── entropy_mask ──


def test_entropy_mask_of_a_worked_example():
    entropies = [[0.1, 0.9, 0.3, 0.2], [0.8, 0.0, 0.05, 0.7], [0.4, 0.6]]
    credit = credit_of("entropy_mask", group([True, False, False], entropies=entropies))
    assert [row.tolist() for row in credit.weights] == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0]]
    assert credit.metrics == {"threshold": pytest.approx(0.8)}
    alone = group([True], entropies=[[0.1, 0.7, 0.2, 0.3, 0.4, 0.5]])
    assert rows_of("entropy_mask", alone) == [[0, 1, 0, 0, 0, 1]]
    assert credit_of("entropy_mask", group([None] * 3, entropies=entropies)).metrics == {}


def test_a_smaller_share_keeps_a_subset():
    names = [f"entropy_mask/fraction={share}" for share in (0.1, 0.2, 0.4, 0.8)]
    shares = [np.concatenate(rows_of(name, random_group(3))) for name in names]
    for smaller, larger in pairwise(shares):
        assert np.all(smaller <= larger) and smaller.sum() < larger.sum()


def test_the_number_of_tokens_is_that_of_the_decimal_fraction():
    for hundredths in range(1, 101):
        for tokens in (1, 2, 3, 7, 10, 99, 100, 101, 12345):
            assert tokens_to_train(hundredths / 100, tokens) == math.ceil(Fraction(hundredths, 100) * tokens)
    assert tokens_to_train(1e-12, 5) == 1


# ── gtpo ──


def test_gtpo_of_a_worked_example():
    """Two correct rollouts share 2 alpha2 at position 0 as 3 : 1, two incorrect ones as 1/1 : 1/4 = 4 : 1."""
    rule = rule_of("gtpo/alpha2=0.5")
    right = rule.rewards([torch.tensor([3.0, 2.0]), torch.tensor([1.0])])
    assert [row.tolist() for row in right] == [[pytest.approx(1.75), 1.5], [pytest.approx(1.25)]]
    wrong = rule.rewards([torch.tensor([1.0]), torch.tensor([4.0])], inverse=True)
    assert [row.tolist() for row in wrong] == [[pytest.approx(1.8)], [pytest.approx(1.2)]]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("inverse", [False, True])
def test_a_position_hands_out_as_much_as_it_has_rollouts(inverse, seed):
    """Proposition 2.2, for all entropies including zeros."""
    rewards = rule_of("gtpo").rewards([row for row in random_group(seed).entropies if len(row)], inverse)
    for t in range(max(map(len, rewards))):
        alive = [row[t].item() for row in rewards if len(row) > t]
        assert sum(alive) == pytest.approx(1.1 * len(alive), abs=1e-12)


def test_signs_are_those_of_the_outcome_up_to_the_documented_share():
    """At 95% correct tokens all keep their signs; beyond, correct tokens with the smallest share lose theirs."""
    for wrong, all_kept in ((5, True), (4, False)):
        entropies = [[5.0] if i % 2 else [1e-6] for i in range(100 - wrong)] + [[1.0]] * wrong
        rows = rows_of("gtpo", group([True] * (100 - wrong) + [False] * wrong, entropies=entropies))
        values = np.concatenate(rows)
        assert np.all(values[100 - wrong :] < 0) and bool(np.all(values[: 100 - wrong] > 0)) is all_kept


def test_zero_and_slightly_negative_entropies_share_equally():
    """A difference of logits' sums, as OpenRLHF's entropies are, may be below 0 by rounding."""
    correct = [True, True, False, False]
    zeros = group(correct, entropies=[[0.0, 0.0], [0.0], [0.0, 0.5], [0.0, 0.0]])
    below = group(correct, entropies=[[-1e-6, 0.0], [0.0], [0.0, 0.5], [-1e-7, 0.0]])
    found = rows_of("gtpo", zeros)
    assert found == rows_of("gtpo", below)
    assert found[0][0] == found[1][0] and found[2][0] == found[3][0]
    assert found[3][1] < found[2][1] < 0, "the sure token takes all of the blame"
    assert credit_of("gtpo", zeros).metrics == {"mixed_groups": 1.0}


# ── ktae ──


def test_associations_of_all_tables_are_scipy_s():
    for right, wrong in ((1, 1), (1, 7), (4, 4), (8, 8), (5, 11)):
        fisher, gain = associations(right, wrong)
        for a in range(right + 1):
            for b in range(wrong + 1):
                p = fisher_exact([[a, b], [right - a, wrong - b]]).pvalue
                assert fisher[a, b].item() == pytest.approx(0.0 if p > 1 - 1e-9 else math.exp(-2 * p), abs=1e-12)
        assert gain[0, 0] == gain[right, wrong] == 0.0, "an id in all rollouts, or in none, tells nothing"
        whole = -sum(n / (right + wrong) * math.log2(n / (right + wrong)) for n in (right, wrong))
        assert gain[right, 0].item() == gain[0, wrong].item() == pytest.approx(whole, abs=1e-12), "all of H(Y)"


def test_ktae_of_a_worked_example():
    """Id 1 is in both correct rollouts, 2 in both incorrect ones, 3 everywhere equally often."""
    given = group([True, True, False, False], token_ids=[[1, 3], [1, 3], [2, 3], [2, 3]])
    gentle = math.tanh((math.exp(-2 / 3) + 1) / 2 * math.pi / 4)
    outcome = grpo(given.rewards)[0]
    credit = credit_of("ktae/frequency=0.0", given)
    assert credit.advantages[0].tolist() == pytest.approx([outcome + gentle, outcome], abs=1e-6)
    assert credit.advantages[2].tolist() == pytest.approx([-outcome - gentle, -outcome], abs=1e-6)
    assert credit.metrics == {"added": pytest.approx(gentle / 2)}


# ── prm_reshape and pure ──


def test_prm_reshape_of_a_worked_example():
    of_steps = (*[StepScores.of((1, 3), (0.25, 0.75))] * 3, StepScores.of((), ()))
    given = RolloutGroup(0, (1.0, NAN, NAN, 0.0), (True, None, None, False), (6, 6, 6, 2), prm_scores=of_steps)
    credit = credit_of("prm_reshape", given)
    assert credit.weights[0].tolist() == [0.25, 0.25, 0.75, 0.75, 0.75, 0.75]
    assert credit.negative_weights[0].tolist() == [0.75, 0.75, 0.25, 0.25, 0.25, 0.25]
    assert credit.weights[3].tolist() == credit.negative_weights[3].tolist() == [1.0, 1.0]
    assert credit.metrics == {"unscored_rollouts": 0.25}


def test_pure_whitens_small_numbers_and_one_token():
    small = torch.tensor([0.0, 1e-4, 3e-4, 2e-4])
    white = checked_over_batch(rule_of("pure"), [small[:1], small[1:]])
    assert white[1][1].item() == pytest.approx(1.5e-4 / math.sqrt(5e-8 / 3 + 1e-8)), "not their variance alone"
    assert [values.tolist() for values in checked_over_batch(rule_of("pure"), [torch.tensor([7.0])])] == [[0.0]]
    assert list(checked_over_batch(rule_of("pure"), [])) == []


def test_metrics_of_a_rule_that_makes_advantages_are_theirs():
    given = [random_group(0), random_group(1)]
    made = [each for each, _ in weighed(rule_of("pure"), given, [range(len(each.lengths)) for each in given])]
    metrics = step_metrics(rule_of("pure"), made, seconds=0.0)
    tokens = torch.cat([row for each in made for row in each.advantages])
    assert metrics["pure/advantage_mean"] == pytest.approx(tokens.double().mean().item(), abs=len(tokens) * 4 * U)
    assert (metrics["pure/advantage_min"], metrics["pure/advantage_max"]) == (tokens.min(), tokens.max())
    worst = [scores.scores.min().item() for scores in given[0].prm_scores if len(scores.scores)]
    assert made[0].metrics == {"worst_step": pytest.approx(np.mean(worst))}
    assert not any("weight" in name for name in metrics)


# ── error_odds ──


@pytest.mark.parametrize("rise", [10.0, 0.0])
def test_error_odds_reads_hidden_states_for_the_rise_alone(rise):
    given, name = random_group(2), f"error_odds/rise={rise}"
    credit = credit_of(name, given if rise else replace(given, hidden_states=None))
    assert ("hidden_states" in rule_of(name).needs) == bool(rise)
    largest = [max(credit.weights[i]).item() for i in sides(given)[1] if given.lengths[i]]
    expected = {"largest_weight": pytest.approx(sum(largest) / len(largest))}
    assert (credit.metrics.pop("cost_spread", 0.0) > 0) == bool(rise)
    assert credit.metrics == expected | ({"opposed": 1.0, "unconverged_fraction": 0.0} if rise else {})


# ── spro ──


def test_a_token_without_a_peer_has_the_outcome_alone():
    policy, reference = [[-1.0, -2.0, -3.0], [-1.0]], [[-2.0, -1.0, -9.0], [-3.0]]
    credit = credit_of("spro", group([True, False], log_probs=policy, ref_log_probs=reference))
    half = math.sqrt(0.5)
    assert credit.advantages[0].tolist() == pytest.approx([half - 0.025, half, half], abs=1e-6)
    assert credit.advantages[1].tolist() == pytest.approx([-half + 0.025], abs=1e-6)
    assert credit.metrics == {"process": pytest.approx(0.05 / 4)}


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_rewards_leave_the_second_part_which_sums_to_0_at_each_step(reward):
    given = full_group([5, 9, 1, 7], [reward] * 4)
    found = rows_of("spro", given)
    for t in range(9):
        assert math.fsum(row[t] for row in found if len(row) > t) == pytest.approx(0, abs=1e-6)
    assert max(abs(value) for row in found for value in row) > 0.005
    same = replace(full_group([5, 9, 1, 7], [1, 0, 0, 1]), ref_log_probs=given.log_probs)
    assert credit_of("spro", same).metrics["process"] == 0.0, "a reference model that is the policy leaves GRPO"


# ── rlsd and sdpo ──


def hinted(correct, gains, **more) -> RolloutGroup:
    plain = [[-2.0] * len(row) for row in gains]
    hints = [[-2.0 + gain for gain in row] for row in gains]
    return replace(group(correct, log_probs=plain, hint_log_probs=hints), **more)


def test_the_only_correct_rollout_has_no_hint_and_gives_one():
    given = hinted([True, False, None], [[0.5], [0.5], [0.5]])
    assert rows_of("sdpo", given) == [[0.0], [0.5], [0.0]]
    assert credit_of("sdpo", given).metrics["gain"] == pytest.approx(1 / 3)  # the failed rollout has a hint too
    right = credit_of("rlsd", given)
    assert right.weights[0].tolist() == [1.0] and right.weights[1].tolist() == pytest.approx([1.1])
    assert rows_of("sdpo", hinted([True, True], [[1.0, -1.0]] * 2)) == [[1.0, -1.0]] * 2, "all are right"


def test_the_strength_falls_in_a_line_over_the_steps():
    given, steps = hinted([True, True, False], [[2.0]] * 3), (1, 2, 3, 5, 6, 9)
    by_step = [credit_of("rlsd/decay_steps=4", replace(given, step=step)).weights[0].item() for step in steps]
    assert by_step == pytest.approx([1.1, 1.075, 1.05, 1.0, 1.0, 1.0], abs=1e-6)


def test_a_gain_without_end_is_clipped():
    credit = credit_of("rlsd", hinted([True, True], [[1999.0]] * 2))
    assert credit.weights[0].item() == pytest.approx(1.1) and credit.negative_weights[0].item() == pytest.approx(0.9)


# ── otb ──


def test_otb_of_a_worked_example():
    """Energy 0.75 at the first token of both: the mean. Then the second rollout is sure, 0.75 against 1.5: 2/3."""
    head = LMHead(torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 100.0]]))
    even, sure = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    states = (torch.cat([even, even]), torch.cat([even, sure]))
    given = replace(group([True, False], token_ids=[[0, 1], [2, 3]]), source_states=states, lm_head=head)
    credit = credit_of("otb", given)
    assert credit.advantages[0].tolist() == pytest.approx([1 / 2, 1 / 3])
    assert credit.advantages[1].tolist() == pytest.approx([-1 / 2, -2 / 3])
    assert credit.metrics == {"energy": pytest.approx((0.75 + 0.75 + 0.75) / 4)}


def test_an_energy_near_0_keeps_its_digits():
    """A token of probability 1 - 3 exp(-20): 1 - 2 pi + sum pi^2 in float32 would be 0 or 1e-7."""
    head = LMHead(torch.tensor([[20.0], [0.0], [0.0], [0.0]]))
    small = math.exp(-20) / (1 + 3 * math.exp(-20))
    exact = (3 * small) ** 2 + 3 * small**2
    assert energies(head, torch.ones(1, 1), torch.tensor([0])).item() == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1])
def test_equal_rewards_cancel_exactly_except_in_the_tail(reward):
    given = full_group([4, 6, 9], [reward] * 3)
    assert rows_of("otb/tail=own", given) == [[0.0] * n for n in given.lengths]
    assert rows_of("otb", given) == [[0.0] * 4, [0.0] * 6, [0.0] * 6 + [np.float32(reward)] * 3]
    alone = full_group([3], [reward])
    assert rows_of("otb", alone) == [[np.float32(reward)] * 3] and rows_of("otb/tail=own", alone) == [[0.0] * 3]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_chunks_are_the_whole(size, monkeypatch):
    given = random_group(4)
    whole = {name: rows_of(name, given) for name in ("otb", "nthr", "nthr/vocabulary=all")}
    in_chunks(monkeypatch, size)
    for name, rows in whole.items():
        assert [pytest.approx(row, abs=2e-6) for row in rows] == rows_of(name, given), name


def test_the_policy_s_dtype_makes_the_logits_and_states_may_be_bfloat16():
    """Bfloat16 has 8 bits: the logits, up to 5, are off by up to 2^-7, and so an energy by some 0.05."""
    plain, half = (full_group([6, 4], [1, 0], dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    for a, b in zip(rows_of("otb", plain), rows_of("otb", half), strict=True):
        assert a == pytest.approx(b, abs=0.1) and a != b
    wide = replace(
        half, **{name: tuple(row.float() for row in getattr(half, name)) for name in ("source_states", "hidden_states")}
    )
    for name in ("delta", "shear/window=4/stride=2"):
        for a, b in zip(rows_of(name, half), rows_of(name, wide), strict=True):
            assert a == pytest.approx(b, abs=1e-4)


# ── delta ──


def test_delta_of_a_worked_example():
    """Axis 0 is right, axis 1 wrong, axis 2 shared: tokens on their own axis weigh more than those on the shared one.

    Centroids (1/2, 0, 1/2) and (0, 1/2, 1/2), margins 1 on the own axis and 0 on the shared one, deviation 1/2. A round
    with sigmoid(2) = 0.881 and 0.5 moves the centroids to (0.638, 0, 0.362), so the own margin is 2 * 0.638.
    """
    axes, log_probs = torch.eye(3), [[-100.0, -100.0]] * 2
    given = replace(group([True, False], log_probs=log_probs), source_states=(axes[[0, 2]], axes[[1, 2]]))
    high = 1 / (1 + math.exp(-2))
    near = high / (high + 0.5)
    weights = [0.8 + 0.4 / (1 + math.exp(-2 * margin)) for margin in (2 * near, 0.0)]
    credit = credit_of("delta", given)
    for row in credit.weights:
        assert row.tolist() == pytest.approx([2 * weight / sum(weights) for weight in weights], abs=1e-6)
    assert credit.metrics["centroids_apart"] == pytest.approx(near / math.hypot(near, 1 - near) / 2**0.5)
    scaled = replace(given, rewards=(3.0, -2.0))
    assert [pytest.approx(row, abs=1e-6) for row in rows_of("delta", scaled)] == rows_of("delta", given)


# ── nthr ──


def test_nthr_of_a_worked_example():
    """All pi are 1/2, so g is (1/2, -1/2) or its negative, and <g, g'> is 1/2 or -1/2.

    The correct rollout writes id 0 from state (1, 0): s of it is 1/2, and tau. The incorrect one writes id 0 from (3,
    0): 3/2, spared. Then id 1 from (3, 0): -3/2; id 0 from (0, 1): 0; both blamed.
    """
    states = (torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.0], [3.0, 0.0], [0.0, 1.0]]))
    given = group([True, False], token_ids=[[0], [0, 1, 0]])
    given = replace(given, source_states=states, lm_head=LMHead(torch.zeros(2, 2)))
    scores, tau = rule_of("nthr").scores(given, [0], [1])
    assert tau == 0.5 and scores[1].tolist() == [1.5, -1.5, 0.0]
    credit = credit_of("nthr", given)
    assert credit.negative_weights[1].tolist() == [0.0, 1.0, 1.0]
    assert credit.metrics == {"spared": pytest.approx(1 / 3), "eta": 0.0}
    assert rows_of("nthr/beta=4.0", given) == [[1.0], [1.0] * 3]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("vocabulary", ["responses", "all"])
def test_scores_of_nthr_match_the_sums_over_all_pairs(vocabulary, seed):
    given = random_group(seed)
    scores, tau = rule_of(f"nthr/beta=0.7/vocabulary={vocabulary}").scores(given, *sides(given))
    expected, least = nthr_scores(given, vocabulary)
    noise = 2e-6 * max(abs(s) for row in expected.values() for s in row)
    assert scores.keys() == expected.keys() and tau == pytest.approx(0.7 * least, abs=noise)
    assert all(scores[i].tolist() == pytest.approx(row, abs=noise) for i, row in expected.items())


@pytest.mark.parametrize(
    ("rewards", "eta"), [([1, 0], 0), ([1, 0, 0, 0], 0.5), ([1, 1, 1, 0], 0.5), ([1, 0, 0], 1 / 3)]
)
def test_eta_is_smallest_at_a_rate_of_one_half_and_counts_rewards_alone(rewards, eta):
    for given in (rewards, [*rewards, NAN]):
        assert credit_of("nthr", full_group([4] * len(given), given)).metrics["eta"] == pytest.approx(eta)


# ── vine ──


def test_equal_prefixes_are_continued_once_and_steps_sum_to_the_reward():
    texts = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 9, 5], [], [8], [1, 2, 3, 4, 5, 6]]
    given = group([True, False, False, True, None], token_ids=texts)
    given = chosen(given, range(5))  # with continuations
    credit = credit_of("vine/every=2/samples=5", given)
    places = {(i, t) for i, t, n in given.continuations.places if n == 5}
    prefixes = [tuple(texts[i][:t]) for i, t, _ in given.continuations.places]
    assert len(set(prefixes)) == len(prefixes) == credit.metrics["places"] and not any(i == 4 for i, _ in places)
    values = [value_of(prefix, 5) for prefix in prefixes]
    assert credit.metrics["value"] == pytest.approx(sum(values) / len(values))
    for text, reward, row in zip(texts[:2], given.rewards, credit.advantages, strict=False):
        assert row[::2].sum().item() == pytest.approx(reward - value_of([], 5), abs=8 * U), text
    failed = chosen(group([None, None], token_ids=[[5, 6], [7]]), range(2))
    assert credit_of("vine", failed).metrics == {"value": 0.0, "places": 0.0} and not failed.continuations.places


def test_vine_and_pure_whiten_a_step_over_its_tokens():
    rows = [torch.tensor(row) for row in rows_of("vine/every=2", random_group(1))]
    tokens = torch.cat(rows).double()
    scale = (tokens.var() + 1e-8).sqrt()
    made = [*checked_over_batch(rule_of("vine"), rows), *checked_over_batch(rule_of("pure"), rows)]
    for found, row in zip(made, rows * 2, strict=True):
        torch.testing.assert_close(found.double(), (row.double() - tokens.mean()) / scale, atol=1e-6, rtol=0)
    off = checked_over_batch(rule_of("vine/whiten=False"), rows)
    assert all(torch.equal(found, row) for found, row in zip(off, rows, strict=True))


def test_continuations_share_no_random_numbers_with_rollouts_or_other_groups(policy, rollouts, monkeypatch):
    seeds = []

    def sample(model, tokenizer, rows, room, seed):
        seeds.append(seed)
        return [torch.tensor([tokenizer.eos_token_id])] * len(rows)

    monkeypatch.setattr(inputs, "continue_ids", sample)
    models = inputs.Models(policy, None, ArithmeticTask())
    values = inputs.continuations(models, [parse_problem(PROMPT)] * 3, rollouts, seed=5)
    for first in (0, 4, 4, 8):
        values([(first, 0), (first + 1, 2)], 3)
    assert seeds[1] == seeds[2] and len({5, *seeds}) == 4
