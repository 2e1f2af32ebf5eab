"""Rules in the update, `entropy_adv` and `fipo`, against loops in float64; U is float32's roundoff.

`fipo` computes factors in float64 and rounds the advantages to float32. So they differ by U |A'| and by float64's
noise, for which 1e-9 is ample.
"""

import math

import numpy as np
import pytest
import torch

from openrlhf_shear.config import EntropyAdvConfig
from openrlhf_shear.config.rules import FipoConfig
from openrlhf_shear.credit.checks import checked_advantages
from openrlhf_shear.credit.rules.entropy_adv import EntropyAdvRule
from openrlhf_shear.credit.rules.fipo import FipoRule

U = 2**-24
SEEDS = (1, 2, 7, 23, 37)  # each of the first three catches every break of the formulas that was tried
AUTHORS = {"half_life": 32.0, "clip_low": 0.0, "clip_high": 0.2, "outlier": 10.0, "safety": 10.0}
KNOBS = [{}, {"half_life": 2.0, "clip_low": 0.2}, {"clip_low": 0.5, "clip_high": 3.0, "safety": 4.0, "outlier": 0.0}]


def numpy_shaped(a, h, alpha, kappa):
    a, h = a.astype(np.float64), h.astype(np.float64)
    return a + np.minimum(alpha * h, np.abs(a) / kappa)


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
    assert np.all(np.abs(shaped.double().numpy() - expected) <= 4 * U * (np.abs(a).max() + config.alpha * h.max()))
    ends = np.sort([a, a + np.abs(a) / config.kappa], axis=0)
    slack = 4 * U * np.abs(a)
    assert np.all(ends[0] - slack <= shaped.numpy()) and np.all(shaped.numpy() <= ends[1] + slack)
    assert not shaped[torch.from_numpy(a == 0)].any()


def test_entropy_adv_at_its_defaults_and_its_metrics():
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0, 0.0, 5.0]])
    entropies = torch.tensor([[0.5, 9.0, 0.5, 9.0, 9.0, 1.0]])
    mask = torch.tensor([[True, True, True, True, True, False]])
    shaped, metrics = EntropyAdvRule().advantages(advantages, entropies, mask)
    assert shaped[0, :5].tolist() == pytest.approx([1.2, 1.5, -0.8, -0.5, 0.0])
    assert metrics == pytest.approx({"entropy": 28 / 5, "bonus": (0.2 + 0.5) * 2 / 4, "capped": 0.5})


def batch(seed, size=40):
    """4 rows: advantages of both signs and 0, log-probs, older log-probs (near, far, wild), a mask with holes."""
    rng = np.random.default_rng(seed)
    base = np.array([[0.7], [-0.4], [-1.3], [0.0]])
    change = rng.normal(size=(4, size)) * np.array([[0.02], [0.05], [1.8], [0.3]])
    new = -rng.exponential(size=(4, size))
    mask = rng.random((4, size)) < 0.8
    mask[:, size - size // 5 :] = False
    tensors = (np.broadcast_to(base, (4, size)), new, new - change)
    return *(torch.tensor(values, dtype=torch.float32) for values in tensors), torch.from_numpy(mask)


def oracle(advantages, new, old, mask, half_life, clip_low, clip_high, outlier, safety) -> np.ndarray:
    shaped = advantages.double().numpy().copy()
    rows, size = shaped.shape
    for i in range(rows):
        change = [float(new[i, t].double() - old[i, t].double()) for t in range(size)]
        for t in range(size):
            if not mask[i, t]:
                continue
            future = 0.0
            for k in range(t, size):
                if mask[i, k] and not (outlier and math.exp(change[k]) > outlier):
                    future += 0.5 ** ((k - t) / half_life) * change[k]
            factor = min(max(math.exp(future), 1 - clip_low), 1 + clip_high)
            if safety and shaped[i, t] < 0 and math.exp(change[t]) > safety:
                factor = min(max(factor, 0.8), 1.0)
            shaped[i, t] *= factor
    return shaped


def made(advantages, new, old, mask, **knobs):
    return checked_advantages(FipoRule(FipoConfig(**knobs)), advantages, mask, None, new, old)


@pytest.mark.parametrize("size", [1, 2, 3, 40, 65])
@pytest.mark.parametrize("knobs", KNOBS)
@pytest.mark.parametrize("seed", range(3))
def test_advantages_match_the_oracle(knobs, size, seed):
    advantages, new, old, mask = batch(seed, size)
    before = advantages.clone()
    shaped, _ = made(advantages, new, old, mask, **knobs)
    expected = oracle(advantages, new, old, mask, **AUTHORS | knobs)
    assert shaped.dtype == torch.float32 and torch.equal(advantages, before)
    assert (np.abs(shaped.double().numpy() - expected) <= U * np.abs(expected) + 1e-9).all()
    assert torch.equal(shaped.sign(), advantages.sign()), "every sign is kept"
    assert torch.equal(shaped[~mask], advantages[~mask])


def test_it_has_an_effect_in_these_batches():
    advantages, new, old, mask = batch(0)
    shaped, metrics = made(advantages, new, old, mask)
    assert 0.2 < (shaped != advantages)[:3][mask[:3]].float().mean() < 0.9
    assert 1.0 < metrics["weight"] < 1.2 and 0.1 < metrics["clipped"] < 0.9
    assert metrics["outliers"] > 0 and metrics["unsafe"] > 0


@pytest.mark.parametrize("knobs", [{"clip_low": 0.0, "clip_high": 0.0, "safety": 0.0}, {}])
def test_a_ratio_of_1_or_no_room_is_grpo_bit_for_bit(knobs):
    advantages, new, old, mask = batch(1)
    shaped, metrics = made(advantages, new, old if knobs else new, mask, **knobs)
    assert torch.equal(shaped, advantages) and metrics["weight"] == 1.0


def test_what_stands_outside_of_the_response_reaches_nothing():
    advantages, new, old, mask = batch(2)
    broken = new.masked_fill(~mask, torch.nan)
    shaped, metrics = made(advantages, broken, old, mask, clip_low=0.5)
    plain, same = made(advantages, new, old, mask, clip_low=0.5)
    assert torch.equal(shaped, plain) and metrics == same
    empty, nothing = made(advantages, new, old, torch.zeros_like(mask))
    assert torch.equal(empty, advantages) and set(nothing.values()) == {0.0}
