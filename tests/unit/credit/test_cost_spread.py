"""`cost_spread`, std(C) / epsilon of a group, its warning, and the knob `epsilon_spread`, against float64 loops.

The tolerance of a deviation is the error of a cost: `|std(C + E) - std(C)| <= max |E|`. `token_costs` has errors of at
most 1e-5 of the norms, which are about 1 in units of nbar.
"""

import math
import statistics

import numpy as np
import pytest
import torch
from clouds import KINDS, real_states
from test_shear_weights import ACCURACY, MIXED, SMALL, assert_close, group, oracle

from openrlhf_shear.config import CreditSpec, SearchConfig, ShearConfig
from openrlhf_shear.config.shear import ErrorOddsConfig
from openrlhf_shear.credit import RolloutGroup, shear_weights
from openrlhf_shear.credit.groups import step_metrics, step_warnings
from openrlhf_shear.credit.heatmaps import shear_evidence
from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.credit.rule import GroupCredit, means
from openrlhf_shear.credit.rules.error_odds import ErrorOddsRule
from openrlhf_shear.credit.rules.text import TextRule
from openrlhf_shear.transport.spread import SAMPLED_TOKENS

COST_ERROR = 1e-5


def oracle_spread(hidden, correct) -> tuple[float, float]:
    """std(C) and nbar, by loops over the tokens of rollouts with opposite outcomes."""
    usable = [i for i, h in enumerate(hidden) if len(h) and h.isfinite().all() and correct[i] is not None]
    nbar = np.mean([math.sqrt(sum(x * x for x in token)) for i in usable for token in hidden[i].tolist()])
    right, wrong = ([i for i in usable if correct[i] is side] for side in (True, False))
    x, y = ([token for i in side for token in hidden[i].tolist()] for side in (right, wrong))
    return statistics.pstdev(math.dist(a, b) / nbar for a in x for b in y), float(nbar)


def taken(hidden, correct, side: bool) -> torch.Tensor:
    """The tokens of a side that enter, when it has too many."""
    tokens = [row for h, c in zip(hidden, correct, strict=True) if c is side for row in h]
    return torch.stack([tokens[k * len(tokens) // SAMPLED_TOKENS] for k in range(SAMPLED_TOKENS)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_spread_is_that_of_all_opposing_tokens(kind, dtype):
    hidden = [h.to(dtype) for h in group(kind)]
    spread, nbar = oracle_spread(hidden, MIXED)
    for knob, epsilon in (({"epsilon_rel": 0.03}, 0.03), ({"epsilon": 0.2}, 0.2 / nbar)):
        result = shear_weights(hidden, MIXED, ShearConfig(**SMALL, **knob))
        assert result.cost_spread == pytest.approx(spread / epsilon, abs=COST_ERROR / epsilon)
        assert result.epsilon == pytest.approx(epsilon)


def test_what_opposes_nothing_does_not_enter():
    hidden = [*group(), torch.full((3, 24), 500.0), torch.full((2, 24), math.nan), torch.empty(0, 24)]
    outcomes = [*MIXED, None, True, False]
    result = shear_weights(hidden, outcomes, ShearConfig(**SMALL))
    assert result.cost_spread == shear_weights(hidden[:4], MIXED, ShearConfig(**SMALL)).cost_spread
    spread, _ = oracle_spread(hidden, outcomes)
    assert result.cost_spread == pytest.approx(spread / 0.015, abs=COST_ERROR / 0.015)


@pytest.mark.parametrize("lengths", [(SAMPLED_TOKENS, 40), (SAMPLED_TOKENS + 1, 40), (300, 290, 300, 120)])
def test_a_long_side_is_measured_on_tokens_that_are_evenly_spread(lengths):
    hidden, outcomes = group("clustered", lengths), [i % 2 == 0 for i in range(len(lengths))]
    sides = [
        taken(hidden, outcomes, side) if sum(lengths[not side :: 2]) > SAMPLED_TOKENS else hidden[not side]
        for side in (True, False)
    ]
    norms = torch.cat(hidden).double().norm(dim=1)
    expected = torch.cdist(*(side.double()[None] for side in sides), compute_mode="donot_use_mm_for_euclid_dist")[0]
    result = shear_weights(hidden, outcomes, ShearConfig(window=60, stride=60))
    spread = expected.numpy().std() / norms.mean().item()
    assert result.cost_spread == pytest.approx(spread / 0.015, abs=COST_ERROR / 0.015)
    right, wrong = (torch.cat(hidden[k::2]).double() for k in (0, 1))
    every = (torch.cdist(right[None], wrong[None])[0] / norms.mean()).numpy().std()
    assert spread == pytest.approx(every, rel=0.1), "a sample of so many tokens is near all of them"


@pytest.mark.parametrize("knob", [{}, {"epsilon_spread": 0.1}])
def test_tiles_and_backends_do_not_change_it(knob):
    hidden, outcomes, config = (
        group("clustered", (300, 290, 300, 120)),
        MIXED,
        ShearConfig(window=20, stride=10, **knob),
    )
    whole = shear_weights(hidden, outcomes, config)
    tiled = shear_weights(hidden, outcomes, config, SearchConfig(max_cost_bytes=2**20))
    other = shear_weights(hidden, outcomes, config, SearchConfig(backend="torch"))
    for result in (tiled, other):
        # the same operations on the same tokens
        assert (result.cost_spread, result.epsilon) == (whole.cost_spread, whole.epsilon)
        for found, want in zip(result.span_distances, whole.span_distances, strict=True):
            torch.testing.assert_close(found, want, rtol=0, atol=2 * ACCURACY * whole.epsilon)


def test_a_group_without_opposites_has_none():
    for outcomes in ([True] * 4, [False] * 4, [None, True, True, None]):
        result = shear_weights(group(), outcomes, ShearConfig(**SMALL, epsilon_spread=0.1))
        assert result.cost_spread is None and result.epsilon is None and result.spread_metrics == {}
        assert all((weights == 1).all() for weights in result.weights)
    assert shear_weights([torch.zeros(3, 2)] * 4, MIXED, ShearConfig(epsilon_spread=0.1)).cost_spread is None


@pytest.mark.parametrize("distance", ["chamfer", "cosine", "mmd", "wasserstein"])
def test_a_distance_without_epsilon_has_none(distance):
    assert shear_weights(group(), MIXED, ShearConfig(**SMALL, distance=distance)).cost_spread is None


def test_equal_costs_have_no_spread_and_every_epsilon_gives_their_distance():
    hidden = [10 * row for row in torch.eye(6).split(3)]  # any two tokens are equally far apart
    result = shear_weights(hidden, [True, False], ShearConfig(epsilon_spread=0.1))
    assert result.cost_spread == 0.0 and result.epsilon == 0.015
    assert torch.cat(result.weights).tolist() == pytest.approx([math.sqrt(2)] * 6, abs=ACCURACY * 0.015)


# ── The knob ──


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_the_knob_is_in_units_of_the_spread(kind, share):
    hidden = group(kind)
    spread, _ = oracle_spread(hidden, MIXED)
    expected = oracle(hidden, MIXED, epsilon=share * spread)
    for epsilon_rel in (0.015, 0.5):  # which has no effect
        config = ShearConfig(**SMALL, epsilon_rel=epsilon_rel, epsilon_spread=share)
        result = shear_weights(hidden, MIXED, config)
        # COST_ERROR: the error of epsilon, of which distances have at most log(n * m) times
        assert_close(result, expected, ACCURACY * share * spread + COST_ERROR * math.log(36))
        assert result.cost_spread == pytest.approx(1 / share)


def test_massive_dimensions_change_no_order_with_the_knob_and_do_without_it():
    plain = [h.float() for h in real_states()[:4]]
    huge = [torch.cat([h, torch.full((len(h), 3), 500.0)], 1) for h in plain]
    order = {}
    for name, config in (("norm", ShearConfig()), ("spread", ShearConfig(epsilon_spread=0.1))):
        before, after = (shear_weights(h, MIXED, config) for h in (plain, huge))
        found = [torch.cat(each.span_distances) * each.mean_norm / before.mean_norm for each in (before, after)]
        order[name] = (found[0] - found[1]).abs().max().item()
        if name == "norm":
            assert before.cost_spread > 5 and after.cost_spread < 2
    assert order["spread"] < 2 * ACCURACY * before.epsilon + COST_ERROR * 19  # the norms are 19 times as large
    assert order["norm"] > 0.05


def test_heatmaps_and_controls_have_the_epsilon_of_the_group():
    # the sides are far apart, so that permuted outcomes have another spread
    hidden = [h + 20 * (i % 2) for i, h in enumerate(group("clustered", (13, 12, 9, 9)))]
    for outcomes in (MIXED, [True] * 4):
        config = ShearConfig(**SMALL, epsilon_spread=0.3)
        result, shown = shear_evidence(hidden, outcomes, config, controls=True)
        epsilon = result.epsilon
        if epsilon is None:  # then the first rollout opposes the others
            epsilon = shear_weights(hidden, [True, False, False, False], config).epsilon
        fixed = ShearConfig(**SMALL, epsilon=epsilon * result.mean_norm)
        _, expected = shear_evidence(hidden, outcomes, fixed, controls=True)
        assert shown.rollouts[0].heatmaps
        for found, want in zip(shown.rollouts, expected.rollouts, strict=True):
            assert found.heatmaps.keys() == want.heatmaps.keys()
            for other, heat in want.heatmaps.items():
                torch.testing.assert_close(found.heatmaps[other], heat, rtol=0, atol=2 * ACCURACY * epsilon)
            for name, control in want.controls.items():
                torch.testing.assert_close(found.controls[name], control, rtol=0, atol=2 * ACCURACY * epsilon)


# ── The metric ──


def rollout_group(hidden, outcomes=(True, False, True, False), number: int = 0) -> RolloutGroup:
    """Group with all that `shear`, `text` and `error_odds` need."""
    lengths = tuple(len(h) for h in hidden)
    columns = {
        "rewards": tuple(float(bool(c)) for c in outcomes),
        "correct": tuple(outcomes),
        "lengths": lengths,
        "hidden_states": tuple(hidden),
        "log_probs": tuple(torch.full((n,), -0.5) for n in lengths),
        "entropies": tuple(torch.full((n,), 0.5) for n in lengths),
        "token_ids": tuple(torch.arange(n) % 3 + i % 2 for i, n in enumerate(lengths)),
    }
    return RolloutGroup(number, **columns)


def credited(rule, groups) -> list[GroupCredit]:
    made = []
    for each in groups:
        credit = rule.credit(each)
        rollouts = tuple(range(len(each.lengths)))
        shown = {"weights": tuple(credit.weights), "metrics": credit.metrics, "seconds": 0.0}
        made.append(GroupCredit(rollouts=rollouts, rewards=each.rewards, correct=each.correct, **shown))
    return made


@pytest.mark.parametrize("rule", ["shear/window=6/stride=3", "text/window=6/stride=3", "error_odds"])
def test_a_step_has_the_median_of_its_mixed_groups(rule):
    groups = [rollout_group([scale * h for h in group(seed=s)]) for s, scale in enumerate((1, 1, 9))]
    groups[2].hidden_states[0][0] *= 100  # a group with a huge spread
    rule = load_rule(CreditSpec(rule))
    credits = credited(rule, [*groups, rollout_group(group(), (True,) * 4)])
    values = [each.metrics["cost_spread"] for each in credits[:3]]
    assert "cost_spread" not in credits[3].metrics
    assert step_metrics(rule, credits, 0.0)[f"{rule.name}/cost_spread"] == statistics.median(values)
    assert means([each.metrics for each in credits])["cost_spread"] == statistics.median(values)  # the lab's
    assert f"{rule.name}/cost_spread" not in step_metrics(rule, credits[3:], 0.0)
    if not isinstance(rule, TextRule):
        assert max(values) > 2 * statistics.median(values)


def test_error_odds_measures_its_own_spans_and_takes_the_knob():
    rule, made = (ErrorOddsRule(ErrorOddsConfig(epsilon_spread=spread)) for spread in (None, 0.25))
    spread, _ = oracle_spread(group(), MIXED)
    found = rule.credit(rollout_group(group())).metrics["cost_spread"]
    assert found == pytest.approx(spread / 0.03, abs=COST_ERROR / 0.03)
    assert made.credit(rollout_group(group())).metrics["cost_spread"] == pytest.approx(4)


def test_a_small_spread_is_told_once_and_names_the_knob():
    told: set[str] = set()
    assert step_warnings({"shear/cost_spread": 2.0, "shear/mean_norm": 0.5}, told) == []
    (line,) = step_warnings({"shear/cost_spread": 0.87}, told)
    assert line.startswith("shear/cost_spread is 0.87, below 2: ") and "shear.epsilon_spread" in line
    assert "shear.epsilon_rel" in line and "recipes.md" in line
    assert step_warnings({"shear/cost_spread": 0.5}, told) == []
    (line,) = step_warnings({"error_odds/cost_spread": 0.0}, told)
    assert "error_odds.epsilon_spread" in line
    (line,) = step_warnings({"shear/cost_spread": 0.87}, set())
