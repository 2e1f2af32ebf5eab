"""TRL with credit rules: a trainer on the shipped policy whose completions are known. Run by `make test-trl`."""

import pytest
import torch
from known import trainer_on


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def trainer(tmp_path):
    """A function: `known.trainer_on` in a new folder."""
    return lambda *args, **kwargs: trainer_on(tmp_path, *args, **kwargs)
