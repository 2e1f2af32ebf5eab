"""Which backend runs the span search: chosen once, said once, never silently another."""

import logging

import pytest
import torch

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import shear_weights
from openrlhf_shear.kernels.backends import choose_backend


def test_choice_is_said_once(caplog):
    choose_backend.cache_clear()
    states = [torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])]
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            shear_weights(states, [True, False], ShearConfig(backend="auto"))
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert "torch" in caplog.text


def test_forced_backend_that_is_missing_raises():
    with pytest.raises(ValueError, match="not known"):
        choose_backend("triton")
