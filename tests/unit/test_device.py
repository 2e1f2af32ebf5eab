"""Which device a run gets, what it needs, and that a CUDA machine never sees the CPU backend."""

import subprocess
import sys

import pytest
import torch

from openrlhf_shear.config import CreditSpec, PrmConfig

PREPARE = """
import sys, types, torch
from openrlhf_shear.fork import launch, upstream
upstream.install_hooks = lambda mixins, reward, asynchronous: print("mixins", sorted(mixins))
upstream.run_main = lambda args: print("ran")
REST = {"credit": None, "reward.remote_url": None, "train.agent_func_path": None, "train.async_enable": False}
"""


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", PREPARE + code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_nothing_of_the_cpu_backend_is_imported_where_cuda_is(device):
    printed = run_python(f"""
torch.cuda.is_available = lambda: True
before = torch.cuda.current_device
launch.launch(types.SimpleNamespace(device={device!r}, **REST))
assert "openrlhf_shear.fork.cpu_backend" not in sys.modules and "flash_attn" not in sys.modules
assert torch.cuda.current_device is before
""")
    assert "device: cuda" in printed and "mixins []" in printed and "ran" in printed


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_cpu_backend_is_installed_and_announced(device):
    printed = run_python(f"""
torch.cuda.is_available = lambda: {device == "cpu"}
launch._connect = lambda gpus, backend: None
launch.gpus_needed = lambda options: 1
launch.launch(types.SimpleNamespace(device={device!r}, **REST))
from flash_attn.bert_padding import unpad_input
assert torch.zeros(1).to(torch.cuda.current_device()).device.type == "cpu"
""")
    assert "device: cpu" in printed and "PolicyModelActor" in printed


def test_a_forced_backend_is_refused_on_the_other_device_before_anything_loads():
    printed = run_python("""
from openrlhf_shear.config import CreditSpec, SearchConfig
try:
    spec = CreditSpec("shear", search=SearchConfig(backend="triton"))
    launch.launch(types.SimpleNamespace(device="cpu", **REST | {"credit": spec}))
except ValueError as error:
    print(error)
assert "openrlhf_shear.fork.cpu_backend" not in sys.modules
""")
    assert "shear.backend triton cannot be used: it needs hidden states on cuda, they are on cpu" in printed


def test_flash_attn_stand_in_unpads_and_pads():
    from openrlhf_shear.fork.cpu_backend import _pad_input, _unpad_input

    mask = torch.tensor([[0, 1, 1], [1, 0, 1], [0, 0, 0]])
    tensor = torch.arange(9.0).view(3, 3, 1)
    tokens, indices, cumulative, longest, lengths = _unpad_input(tensor, mask)
    assert tokens.flatten().tolist() == [1, 2, 3, 5]
    assert indices.tolist() == [1, 2, 3, 5]
    assert cumulative.tolist() == [0, 2, 4, 4] and longest == 2 and lengths.tolist() == [2, 2, 0]
    assert torch.equal(_pad_input(tokens, indices, 3, 3), tensor * mask[..., None])


def options(**changed):
    values = {
        "actor.num_nodes": 1,
        "actor.num_gpus_per_node": 2,
        "ref.num_nodes": 1,
        "ref.num_gpus_per_node": 2,
        "critic.num_nodes": 1,
        "critic.num_gpus_per_node": 1,
        "reward.num_nodes": 1,
        "reward.num_gpus_per_node": 1,
        "vllm.num_engines": 2,
        "vllm.tensor_parallel_size": 2,
        "train.colocate_all": False,
        "train.async_enable": False,
        "train.colocate_actor_ref": False,
        "train.colocate_critic_reward": False,
        "train.agent_func_path": None,
        "algo.kl.init_coef": 0.0,
        "algo.advantage.estimator": "group_norm",
        "reward.remote_url": "reward.py",
        "credit": None,
    }
    return values | changed


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 2 + 4),
        ({"train.colocate_all": True}, 2),
        ({"algo.kl.init_coef": 0.1}, 2 + 4 + 2),
        ({"algo.kl.init_coef": 0.1, "train.colocate_actor_ref": True}, 2 + 4),
        ({"reward.remote_url": None}, 2 + 4 + 1),
        ({"train.colocate_all": True, "train.async_enable": True}, 2 + 4),
        ({"credit": CreditSpec("pure", prm=PrmConfig("prm", 2, 3))}, 2 + 4 + 2 * 3),
        ({"credit": CreditSpec("pure", prm=PrmConfig("prm", 1, 2)), "train.colocate_all": True}, 2),
        ({"credit": CreditSpec("shear")}, 2 + 4),
    ],
)
def test_gpus_a_run_needs(changed, expected):
    from openrlhf_shear.fork.launch import gpus_needed

    assert gpus_needed(options(**changed)) == expected


def test_an_evaluation_on_too_few_gpus_is_refused_where_ray_would_wait_for_ever():
    printed = run_python("""
torch.cuda.is_available = lambda: True
upstream.install_hooks = lambda mixins: print("mixins", mixins)
launch.ray.init = lambda **kwargs: None
launch.ray.cluster_resources = lambda: {"GPU": 4.0}
launch.connect("auto", 4)
try:
    launch.connect("auto", 8)
except RuntimeError as error:
    print(error)
""")
    assert "mixins {}" in printed and "8 GPUs are needed, the Ray cluster has 4; use fewer engines" in printed


def test_cluster_with_too_few_logical_gpus_is_refused_with_the_remedy():
    printed = run_python(f"""
options = {options()!r}
launch.ray.init = lambda **kwargs: None
launch.ray.is_initialized = lambda: True
launch.ray.cluster_resources = lambda: {{"GPU": 4.0, "CPU": 8.0}}
from openrlhf_shear.fork import cpu_backend
cpu_backend.install()
try:
    launch._connect(launch.gpus_needed(options), cpu_backend)
except RuntimeError as error:
    print(error)
""")
    assert "needs 6 logical GPUs, the Ray cluster has 4" in printed and "ray start --head --num-gpus 6" in printed
