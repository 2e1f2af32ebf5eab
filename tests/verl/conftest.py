"""verl with credit rules: its own worker, estimators and protocol, on a CPU. Run by `make test-verl`."""

import os

import pytest
import torch

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session", autouse=True)
def alone(tmp_path_factory):
    """One thread, and a process group of one process."""
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("store") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
