"""Sums of rewards from each token on, as OpenRLHF's loop has them."""

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from openrlhf_shear.train.experience.graded_experience import GradedExperienceMaker


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("tokens", [1, 5, 700])
def test_they_are_upstream_s_bit_for_bit(tokens, gamma, dtype):
    generator = torch.Generator().manual_seed(tokens)
    rewards = torch.randn(3, tokens, generator=generator).to(dtype)
    mask = torch.rand(3, tokens, generator=generator) < 0.8
    ours, theirs = (object.__new__(kind) for kind in (GradedExperienceMaker, RemoteExperienceMaker))
    for given in (mask, None):
        mine, other = (maker.get_cumulative_returns(rewards.clone(), given, gamma) for maker in (ours, theirs))
        assert mine.dtype == other.dtype and torch.equal(mine, other)
