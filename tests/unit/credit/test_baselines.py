"""GRPO's advantages against float64 numpy; U is float32's unit roundoff."""

import numpy as np
import pytest
import torch

from openrlhf_shear.credit.baselines import group_advantages

U = 2**-24


def numpy_group_norm(rewards):
    r = np.asarray(rewards, np.float64)
    return (r - r.mean()) / (r.std(ddof=1) + 1e-9)


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


@pytest.mark.parametrize("seed", (1, 2, 7, 23, 37))
def test_group_norm_of_random_rewards(seed):
    rng = np.random.default_rng(seed)
    rewards = (rng.normal() + rng.normal(size=rng.integers(2, 10))).astype(np.float32)
    found, count = group_advantages(torch.from_numpy(rewards), len(rewards)), len(rewards)
    spread = np.abs(rewards).max() / rewards.std(ddof=1)
    # a mean of G numbers up to M, over the deviation, itself as exact; |A| <= sqrt(G)
    tolerance = (count + 3) * (1 + np.sqrt(count)) * (1 + spread) * U
    assert np.all(np.abs(found.double().numpy() - numpy_group_norm(rewards)) <= tolerance)
