"""`otb` against loops over places and rollouts, in float64 from the paper's formulas.

Energies have the error of float32 logits (`logit_groups.py`), and advantages are float32. The largest difference over
these seeds was 8e-8.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from logit_groups import NAN, in_chunks, logit_group, probabilities, random_group

from openrlhf_shear.config.rules import OtbConfig
from openrlhf_shear.credit.apply import token_advantages, weighed
from openrlhf_shear.credit.logits import LMHead
from openrlhf_shear.credit.rules.otb import OtbRule, energies

NOISE = 1e-6
SEEDS = range(8)


def oracle_energy(group, i, t) -> float:
    drawn = int(group.token_ids[i][t])
    error = [float(v == drawn) - p for v, p in enumerate(probabilities(group, i, t))]
    return math.fsum(e * e for e in error)


def oracle(group, tail="zero") -> list[list[float]]:
    rated = [i for i, reward in enumerate(group.rewards) if not math.isnan(reward)]
    advantages = [[0.0] * n for n in group.lengths]
    for i in rated:
        for t in range(group.lengths[i]):
            alive = [j for j in rated if group.lengths[j] > t]
            realized = {j: math.fsum(oracle_energy(group, j, s) for s in range(t + 1)) for j in alive}
            baseline = math.fsum(realized[j] * group.rewards[j] for j in alive) / math.fsum(realized.values())
            if len(alive) == 1 and tail == "zero":
                baseline = 0.0
            advantages[i][t] = group.rewards[i] - baseline
    return advantages


def made(group, **knobs) -> list[list[float]]:
    return [row.tolist() for row in OtbRule(OtbConfig(**knobs)).credit(group).advantages]


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a == pytest.approx(b, abs=NOISE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tail", ["zero", "own"])
def test_advantages_match_the_oracle(tail, seed):
    group = random_group(seed)
    assert_close(made(group, tail=tail), oracle(group, tail))
    graded = replace(group, rewards=tuple(reward + 0.1 * i for i, reward in enumerate(group.rewards)))
    assert_close(made(graded, tail=tail), oracle(graded, tail))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_chunks_are_the_whole(rows, monkeypatch):
    group = random_group(3)
    whole = made(group)
    in_chunks(monkeypatch, rows)
    assert_close(made(group), whole)


def test_a_worked_example():
    """Energy 0.75 at the first token of both: the mean. Then the second rollout is sure, 0.75 against 1.5: 2/3."""
    head = LMHead(torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 100.0]]))
    even, sure = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    states = (torch.cat([even, even]), torch.cat([even, sure]))
    group = replace(
        logit_group([2, 2], [1, 0]), source_states=states, token_ids=(torch.tensor([0, 1]), torch.tensor([2, 3]))
    )
    credit = OtbRule().credit(replace(group, lm_head=head))
    assert credit.advantages[0].tolist() == pytest.approx([1 / 2, 1 / 3])
    assert credit.advantages[1].tolist() == pytest.approx([-1 / 2, -2 / 3])
    assert credit.metrics == {"energy": pytest.approx((0.75 + 0.75 + 0.75) / 4)}


def test_an_energy_near_0_keeps_its_digits():
    """A token of probability 1 - 3 exp(-20): 1 - 2 pi + sum pi^2 in float32 would be 0 or 1e-7."""
    head = LMHead(torch.tensor([[20.0], [0.0], [0.0], [0.0]]))
    small = math.exp(-20) / (1 + 3 * math.exp(-20))
    exact = (3 * small) ** 2 + 3 * small**2
    assert energies(head, torch.ones(1, 1), torch.tensor([0])).item() == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_where_others_have_the_place_a_sign_is_that_of_the_outcome(seed):
    group = random_group(seed)
    for i, row in enumerate(made(group)):
        for t, value in enumerate(row):
            alive = [j for j, n in enumerate(group.lengths) if n > t and group.correct[j] is not None]
            if i in alive and len({group.correct[j] for j in alive}) == 2:
                assert (value > 0) is group.correct[i], (i, t)


def test_equal_rewards_cancel_exactly_except_in_the_tail():
    lengths = [4, 6, 9]
    for reward in (0.0, 1.0, 0.1):
        group = logit_group(lengths, [reward] * 3)
        assert made(group, tail="own") == [[0.0] * n for n in lengths]
        tail = [np.float32(reward)] * 3
        assert made(group) == [[0.0] * 4, [0.0] * 6, [0.0] * 6 + tail]


def test_a_group_of_one_has_its_reward_and_with_the_formula_nothing():
    for reward in (0.0, 1.0):
        assert made(logit_group([3], [reward])) == [[reward] * 3]
        assert made(logit_group([3], [reward]), tail="own") == [[0.0] * 3]
    assert made(logit_group([1, 1], [1, 0])) != made(logit_group([1, 1], [1, 0], seed=1))
    assert made(logit_group([0, 0], [1, 0])) == [[], []]
    ended = made(logit_group([3, 3], [1, 0]))
    assert ended[0] != [1.0] * 3, "no tail where the two longest are equally long"


def test_rollouts_without_a_reward_count_nowhere():
    with_it, without = logit_group([4, 3, 7], [1, 0, NAN]), logit_group([4, 3], [1, 0])
    without = replace(with_it, **{name: value[:2] for name, value in vars(with_it).items() if isinstance(value, tuple)})
    assert made(with_it) == [*made(without), [0.0] * 7]
    nothing = OtbRule().credit(logit_group([2, 1], [NAN, NAN]))
    assert [row.tolist() for row in nothing.advantages] == [[0.0, 0.0], [0.0]] and nothing.metrics == {}


def test_the_policy_s_dtype_makes_the_logits():
    """Bfloat16 has 8 bits: the logits, up to 5, are off by up to 2^-7, and so an energy by some 0.05."""
    plain, half = logit_group([6, 4], [1, 0]), logit_group([6, 4], [1, 0], dtype=torch.bfloat16)
    for a, b in zip(made(plain), made(half), strict=True):
        assert a == pytest.approx(b, abs=0.1) and a != b


def test_training_replaces_the_advantages_by_these():
    group = random_group(2)
    ((weighted, _),) = weighed(OtbRule(), [group], [range(len(group.lengths))])
    base = {i: torch.full((n,), 7.0) for i, n in enumerate(group.lengths)}
    failed = [i for i, outcome in enumerate(group.correct) if outcome is None]
    given = token_advantages(OtbRule(), [weighted], base, failed)
    assert_close([given[i].advantages.tolist() for i in base], oracle(group))
