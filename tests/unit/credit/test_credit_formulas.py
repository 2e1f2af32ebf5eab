"""The formulas of the simple rules against float64 numpy, written from the papers; U is float32's unit roundoff."""

import numpy as np
import pytest
import torch

from openrlhf_shear.config import EntropyAdvConfig, PureConfig
from openrlhf_shear.credit.baselines import group_advantages
from openrlhf_shear.credit.checks import checked_advantages, checked_over_batch
from openrlhf_shear.credit.groups import CreditRequest, GroupCollector, step_metrics
from openrlhf_shear.credit.rule import StepScores
from openrlhf_shear.credit.rules.entropy_adv import EntropyAdvRule
from openrlhf_shear.credit.rules.prm_reshape import PrmReshapeRule
from openrlhf_shear.credit.rules.pure import PureRule

U = 2**-24
SEEDS = (1, 2, 7, 23, 37)  # each of the first three catches every break of the formulas that was tried
NAN = float("nan")


def numpy_group_norm(rewards):
    r = np.asarray(rewards, np.float64)
    return (r - r.mean()) / (r.std(ddof=1) + 1e-9)


def numpy_shaped(a, h, alpha, kappa):
    a, h = a.astype(np.float64), h.astype(np.float64)
    return a + np.minimum(alpha * h, np.abs(a) / kappa)


def numpy_filled(ends, scores, length):
    """Each token's step is the first that ends at or behind it, or the last one."""
    if len(ends) == 0:
        return np.ones(length)
    return np.array([scores[min(sum(end < t for end in ends), len(ends) - 1)] for t in range(length)], np.float64)


def numpy_return(ends, scores, length, reward, temperature, coef):
    r = 2 * np.asarray(scores, np.float64) - 1
    token_rewards = np.zeros(length)
    for k, end in enumerate(ends):
        token_rewards[end] += r[k] / sum(np.exp((r[k] - other) / temperature) for other in r)
    if length:
        token_rewards[-1] += coef * reward
    return np.array([token_rewards[t:].sum() for t in range(length)])


def numpy_pure(rollouts, width=None, temperature=0.1, coef=1.0):
    width = width or max(1, *(length for _, _, length, _ in rollouts))
    returns = [numpy_return(*rollout, temperature, coef) for rollout in rollouts]
    rated = [i for i, rollout in enumerate(rollouts) if not np.isnan(rollout[3])]
    advantages = []
    for i, (_, _, length, _) in enumerate(rollouts):
        others = [returns[j].sum() / width for j in rated if j != i]
        baseline = np.mean(others) if others else 0.0
        advantages.append(returns[i] - baseline if i in rated else np.zeros(length))
    return advantages


def numpy_whitened(advantages):
    x = np.concatenate(advantages)
    scale = np.sqrt(x.var(ddof=1) + 1e-8)
    return [(a - x.mean()) / scale for a in advantages]


def random_rollouts(seed, failing=0.2):
    """2 to 9 of (ends (K,), scores (K,) float32, T, reward); some empty, unscored, cut short, or without a reward."""
    rng = np.random.default_rng(seed)
    rollouts = []
    for _ in range(rng.integers(2, 10)):
        length = int(rng.choice([0, 1, rng.integers(2, 41)], p=[0.1, 0.1, 0.8]))
        steps = int(rng.choice([1, rng.integers(1, length + 1)])) if length else 0
        ends = np.append(np.sort(rng.choice(length - 1, steps - 1, replace=False)), length - 1) if steps else []
        scored = int(rng.choice([steps, rng.integers(0, steps + 1)]))
        scores = rng.choice([0.0, 1.0, 0.5, *rng.random(9)], scored).astype(np.float32)
        reward = rng.choice([NAN, rng.choice([0.0, 1.0, rng.normal()])], p=[failing, 1 - failing])
        rollouts.append((np.array(ends[:scored], np.int64), scores, length, float(reward)))
    return rollouts


def step_scores(ends, scores):
    return StepScores(torch.as_tensor(ends, dtype=torch.int64), torch.as_tensor(scores), len(ends))


def through(rule, rollouts):
    """Through a collector, in two micro-batches, the second first."""
    ends, scores, lengths, rewards = zip(*rollouts, strict=True)
    prm_scores = [step_scores(*pair) for pair in zip(ends, scores, strict=True)]
    collector, count = GroupCollector(rule), len(rollouts)
    for rows in (range(count // 2, count), range(count // 2)):
        rated = tuple(rewards[i] for i in rows)
        correct = tuple(None if np.isnan(reward) else reward >= 0.5 for reward in rated)
        request = CreditRequest(
            tuple(rows), (3,) * len(rows), rated, correct, count, tuple(prm_scores[i] for i in rows)
        )
        collector.add(request, [lengths[i] for i in rows], {})
    (credit,) = collector.take()
    return credit


def pure_tolerance(rollouts, width=None, temperature=0.1, coef=1.0):
    """Rounding of the pure rule.

    Softmax of numbers up to 1 / T: 16 U / T twice. Sums over tokens 5 T U, over rollouts 2 G U, and 20 roundings.
    All numbers are up to M; the mean over the width is up to M T / W.
    """
    longest = max(length for _, _, length, _ in rollouts)
    largest = 1 + coef * max([abs(reward) for *_, reward in rollouts if not np.isnan(reward)], default=0)
    stretch = max(1, longest / width) if width else 1
    return (32 / temperature + 5 * longest + 2 * len(rollouts) + 20) * largest * stretch * U


def assert_close(found, expected, tolerance):
    assert [len(values) for values in found] == [len(values) for values in expected]
    for values, wanted in zip(found, expected, strict=True):
        assert np.all(np.abs(values.double().numpy() - wanted) <= tolerance)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 1, 0, 0, 1, 1, 0], [0.9354, -0.9354, 0.9354, -0.9354, -0.9354, 0.9354, 0.9354, -0.9354]),
        ([0, 0, 1, 0, 0, 0, 0, 0], [-0.3536, -0.3536, 2.4749, *[-0.3536] * 5]),
        ([0] * 8, [0] * 8),
        ([0.1] * 8, [0] * 8),  # whose float32 mean is not quite 0.1
    ],
)
def test_group_norm_of_the_reference_values(rewards, expected):
    assert numpy_group_norm(rewards) == pytest.approx(expected, abs=5e-5)  # their last digit
    found = group_advantages(torch.tensor(rewards).float(), len(rewards)).tolist()
    assert found == (pytest.approx(expected, abs=5e-5) if any(expected) else expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_group_norm_of_random_rewards(seed):
    rng = np.random.default_rng(seed)
    rewards = (rng.normal() + rng.normal(size=rng.integers(2, 10))).astype(np.float32)
    found, count = group_advantages(torch.from_numpy(rewards), len(rewards)), len(rewards)
    spread = np.abs(rewards).max() / rewards.std(ddof=1)
    # a mean of G numbers up to M, over the deviation, itself as exact; |A| <= sqrt(G)
    tolerance = (count + 3) * (1 + np.sqrt(count)) * (1 + spread) * U
    assert_close([found], [numpy_group_norm(rewards)], tolerance)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("config", [EntropyAdvConfig(), EntropyAdvConfig(alpha=1.3, kappa=1.1)])
def test_entropy_adv_of_random_batches(config, seed):
    rng = np.random.default_rng(seed)
    shape = (rng.integers(1, 6), rng.integers(1, 50))
    a = (rng.normal(size=shape) * rng.integers(0, 2, shape)).astype(np.float32)
    h = (rng.exponential(size=shape) * rng.integers(0, 2, shape)).astype(np.float32)
    mask = torch.from_numpy(rng.random(shape) < 0.7)
    shaped, _ = checked_advantages(EntropyAdvRule(config), torch.from_numpy(a), mask, torch.from_numpy(h))
    expected = numpy_shaped(a, h, config.alpha, config.kappa)
    # at most two roundings of the bonus and one of the sum, which is up to twice as large as A
    assert_close(shaped, expected, 4 * U * (np.abs(a).max() + config.alpha * h.max()))
    ends = np.sort([a, a + np.abs(a) / config.kappa], axis=0)
    slack = 4 * U * np.abs(a)
    assert np.all(ends[0] - slack <= shaped.numpy()) and np.all(shaped.numpy() <= ends[1] + slack)
    assert not shaped[torch.from_numpy(a == 0)].any()


@pytest.mark.parametrize("seed", SEEDS)
def test_prm_reshape_of_random_groups(seed):
    rollouts = random_rollouts(seed, failing=0.0)
    credit = through(PrmReshapeRule(), rollouts)
    base = group_advantages(torch.tensor([reward for *_, reward in rollouts]), len(rollouts)).tolist()
    assert credit.tensors().keys() == {"weights", "negative_weights"}
    for i, (ends, scores, length, _) in enumerate(rollouts):
        p, a = numpy_filled(ends, scores, length), np.float64(base[i])
        q = 1 - p if len(ends) else np.ones(length)
        weights, negative = credit.weights[i].double().numpy(), credit.negative_weights[i].double().numpy()
        assert np.array_equal(weights, p), "probabilities are handed on as they are"
        assert np.all(np.abs(negative - q) <= U / 2), "one rounding below 1"
        reshaped = a * (negative if a < 0 else weights)
        assert np.all(reshaped * a >= 0) and np.all(np.abs(reshaped) <= abs(a))


def test_prm_reshape_of_a_worked_example():
    ends, scores = [1, 3], np.array([0.25, 0.75], np.float32)
    unscored = ([], np.zeros(0, np.float32), 2, 0.0)
    credit = through(PrmReshapeRule(), [(ends, scores, 6, 1.0), unscored, *[(ends, scores, 6, NAN)] * 2])
    assert credit.weights[0].tolist() == [0.25, 0.25, 0.75, 0.75, 0.75, 0.75]
    assert credit.negative_weights[0].tolist() == [0.75, 0.75, 0.25, 0.25, 0.25, 0.25]
    assert credit.weights[1].tolist() == credit.negative_weights[1].tolist() == [1.0, 1.0]
    assert credit.metrics == {"unscored_rollouts": 0.25}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("knobs", [{}, {"width": 64}, {"width": 7, "temperature": 1.0}, {"verifiable_coef": 0.3}])
def test_pure_of_random_groups(knobs, seed):
    rollouts, oracle_knobs = random_rollouts(seed), dict(knobs)
    if "verifiable_coef" in knobs:
        oracle_knobs["coef"] = oracle_knobs.pop("verifiable_coef")
    credit = through(PureRule(PureConfig(**knobs)), rollouts)
    assert credit.tensors().keys() == {"advantages"}
    assert_close(credit.advantages, numpy_pure(rollouts, **oracle_knobs), pure_tolerance(rollouts, **oracle_knobs))
    for made, (*_, reward) in zip(credit.advantages, rollouts, strict=True):
        assert not np.isnan(reward) or not made.any()
    worst = [scores.min() for _, scores, *_ in rollouts if len(scores)]
    assert credit.metrics == (pytest.approx({"worst_step": np.mean(worst)}) if worst else {})


def test_pure_of_empty_responses_alone_is_empty():
    nothing = ([], np.zeros(0, np.float32), 0, 1.0)
    assert [len(made) for made in through(PureRule(), [nothing, nothing]).advantages] == [0, 0]


@pytest.mark.parametrize("seed", SEEDS)
def test_pure_whitens_over_the_batch(seed):
    groups = [random_rollouts(seed * 5 + i) for i in range(5)]
    made, expected = [], []
    for rollouts in groups:
        rated = [i for i, (*_, reward) in enumerate(rollouts) if not np.isnan(reward)]
        credit, oracle = through(PureRule(), rollouts), numpy_pure(rollouts)
        made, expected = made + [credit.advantages[i] for i in rated], expected + [oracle[i] for i in rated]
    white, expected_white = checked_over_batch(PureRule(), made), numpy_whitened(expected)
    x, tokens = np.concatenate(expected), torch.cat(list(white)).double()
    # the inputs are off by `before`, mean and deviation of N numbers by N U of the largest of them
    before = max(pure_tolerance(rollouts) for rollouts in groups)
    off = (2 * before + (len(x) + 2) * U * np.abs(x).max()) / x.std()
    assert_close(white, expected_white, off * (1 + np.abs(np.concatenate(expected_white)).max()))
    assert abs(tokens.mean()) <= off and abs(tokens.var() - 1) <= 3 * off + 1e-8 / x.var()


def test_whitening_of_small_numbers_and_of_one_token():
    small = np.array([0.0, 1e-4, 3e-4, 2e-4], np.float32)
    white = checked_over_batch(PureRule(), [torch.from_numpy(small[:1]), torch.from_numpy(small[1:])])
    assert_close(white, numpy_whitened([small[:1].astype(float), small[1:].astype(float)]), 32 * U)  # a few roundings
    assert white[1][1].item() == pytest.approx(1.5e-4 / np.sqrt(5e-8 / 3 + 1e-8)), "not their variance alone"
    assert [values.tolist() for values in checked_over_batch(PureRule(), [torch.tensor([7.0])])] == [[0.0]]
    assert list(checked_over_batch(PureRule(), [])) == []


def test_metrics_of_a_rule_that_makes_advantages_are_theirs():
    rule, rollouts = PureRule(), random_rollouts(0)
    first, second = through(rule, rollouts), through(rule, random_rollouts(1))
    metrics = step_metrics(rule, [first, second], seconds=0.0)
    tokens = torch.cat([*first.advantages, *second.advantages])
    assert metrics["pure/advantage_mean"] == pytest.approx(tokens.double().mean().item(), abs=len(tokens) * 4 * U)
    assert metrics["pure/advantage_min"] == tokens.min().item()
    assert metrics["pure/advantage_max"] == tokens.max().item()
    assert not any("weight" in name for name in metrics)
