"""Worked examples of the rules, and what holds for one rule alone; U is float32's roundoff."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from lab_cases import PROMPT
from rule_groups import NAN, chosen, credit_of, full_group, in_chunks, random_group, rows_of, rule_of, value_of
from scipy.stats import fisher_exact
from test_rule_formulas import sides

from openrlhf_shear.credit import RolloutGroup
from openrlhf_shear.credit.apply import weighed
from openrlhf_shear.credit.captured import LMHead
from openrlhf_shear.credit.checks import checked_over_batch
from openrlhf_shear.credit.groups import step_metrics
from openrlhf_shear.credit.rule import StepScores
from openrlhf_shear.credit.rules.entropy_mask import tokens_to_train
from openrlhf_shear.credit.rules.ktae import associations
from openrlhf_shear.credit.rules.otb import energies
from openrlhf_shear.lab import rollouts as inputs
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


# ── Metrics ──

STEP_SCORES = (*[StepScores.of((1, 3), (0.25, 0.75))] * 3, StepScores.of((), ()))
AXES = torch.eye(3)
METRICS = {  # rule -> a group, and its metrics by hand
    "entropy_mask": (
        group([True, False, False], entropies=[[0.1, 0.9, 0.3, 0.2], [0.8, 0.0, 0.05, 0.7], [0.4, 0.6]]),
        {"threshold": 0.8},
    ),
    # id 1 is in both correct rollouts, 2 in both incorrect ones, 3 everywhere equally often
    "ktae/frequency=0.0": (
        group([True, True, False, False], token_ids=[[1, 3], [1, 3], [2, 3], [2, 3]]),
        {"added": math.tanh((math.exp(-2 / 3) + 1) / 2 * math.pi / 4) / 2},
    ),
    "prm_reshape": (
        RolloutGroup(0, (1.0, NAN, NAN, 0.0), (True, None, None, False), (6, 6, 6, 2), prm_scores=STEP_SCORES),
        {"unscored_rollouts": 0.25},
    ),
    "spro": (
        group([True, False], log_probs=[[-1.0, -2.0, -3.0], [-1.0]], ref_log_probs=[[-2.0, -1.0, -9.0], [-3.0]]),
        {"process": 0.05 / 4},
    ),
    # all pi are 1/4 but that of the last token, which is sure
    "otb": (
        replace(
            group([True, False], token_ids=[[0, 1], [2, 3]]),
            source_states=(torch.tensor([[1.0, 0.0]] * 2), torch.eye(2)),
            lm_head=LMHead(torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 100.0]])),
        ),
        {"energy": (0.75 + 0.75 + 0.75) / 4},
    ),
    # axis 0 is right, axis 1 wrong, axis 2 shared: centroids (1/2, 0, 1/2) and (0, 1/2, 1/2)
    "delta/rounds=0": (
        replace(group([True, False], log_probs=[[-100.0, -100.0]] * 2), source_states=(AXES[[0, 2]], AXES[[1, 2]])),
        {"centroids_apart": 0.5},
    ),
    # all pi are 1/2: s is 1/2 in the correct rollout, and 3/2 (spared), -3/2 and 0 in the other one
    "nthr": (
        replace(
            group([True, False], token_ids=[[0], [0, 1, 0]]),
            source_states=(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.0], [3.0, 0.0], [0.0, 1.0]])),
            lm_head=LMHead(torch.zeros(2, 2)),
        ),
        {"spared": 1 / 3, "eta": 0.0},
    ),
    # of five correct tokens two are unlikely, of which one has a low entropy; incorrect tokens are never silenced
    "stapo": (
        group(
            [True, True, False],
            log_probs=[[-9.0, -9.0, -1.0], [-0.1, -0.1], [-9.0]],
            entropies=[[0.1, 2.0, 0.1], [0.1, 3.0], [0.1]],
        ),
        {"silenced": 1 / 5},
    ),
    # the second step is wrong, and the good one has two tokens of ten, of which a tenth of the response is cut off
    "vppo": (
        RolloutGroup(
            0,
            (1.0, 0.0),
            (True, False),
            (4, 10),
            prm_scores=tuple(StepScores.of((1, 3), scores) for scores in ((0.1, 0.1), (0.9, 0.5))),
        ),
        {"prefix": 0.1},
    ),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_of_a_rule_by_hand(name):
    given, metrics = METRICS[name]
    assert credit_of(name, given).metrics == pytest.approx(metrics)


# ── entropy_mask ──


def test_the_number_of_tokens_is_that_of_the_decimal_fraction():
    for hundredths in range(1, 101):
        for tokens in (1, 2, 3, 7, 10, 99, 100, 101, 12345):
            assert tokens_to_train(hundredths / 100, tokens) == math.ceil(Fraction(hundredths, 100) * tokens)
    assert tokens_to_train(1e-12, 5) == 1


# ── gtpo ──


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


# ── pure ──


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


def test_a_gain_without_end_is_clipped():
    credit = credit_of("rlsd", hinted([True, True], [[1999.0]] * 2))
    assert credit.weights[0].item() == pytest.approx(1.1) and credit.negative_weights[0].item() == pytest.approx(0.9)


# ── otb ──


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
    whole = {name: rows_of(name, given) for name in ("otb", "nthr")}
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


# ── nthr ──


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
