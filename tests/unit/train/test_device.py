"""The device of a run and its GPUs; a CUDA machine never imports the CPU backend."""

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import cases

from openrlhf_shear.config import CreditSpec
from openrlhf_shear.config.refusal import LineError
from openrlhf_shear.doctor.gpu import Gpu, Gpus
from openrlhf_shear.line.run import Run
from openrlhf_shear.preflight import layout
from openrlhf_shear.train.nodes import cluster, machine, own_ray
from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.start import attempts

TOKENS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
LAUNCHES = """
import sys, torch
from openrlhf_shear.config import CreditSpec, SearchConfig
from openrlhf_shear.line.run import Run
from openrlhf_shear.preflight import layout
from openrlhf_shear.train.nodes import cluster
from openrlhf_shear.train.start import launch

launch.install_hooks = lambda mixins, *others: print("mixins", [patch.place for patch in mixins])
launch.run_main = lambda args: print("ran")
cluster.join = cluster.join_on_cpu = lambda gpus, *others: None
cluster.gpus_needed = lambda run: 1
REST = {"reward.remote_url": None, "train.agent_func_path": None, "train.async_enable": False}
REST |= {"train.wait_for_gpus": 0.0, "ds.ring_attn_size": 1, "data.max_images_per_prompt": 0}
REST |= {"rollout.temperature": 1.0, "rollout.top_p": 1.0, "ckpt.output_dir": "out"}
REST |= {"data.disable_fast_tokenizer": False, "actor.model_name_or_path": None, "use_ms": False}

def start(device, cuda, spec=None, **changed):
    torch.cuda.is_available = lambda: cuda
    try:
        launch.launch(Run(REST | changed | {"device": device}, (), spec, spec and spec.traits), None)
    except ValueError as error:
        print(error)
    print("--")

before = torch.cuda.current_device
start("auto", True), start("cuda", True)
start("auto", True, **{"ds.ring_attn_size": 2})
start("cpu", True, CreditSpec("shear", search=SearchConfig(backend="triton")))
assert not {"openrlhf_shear.train.cpu.backend", "flash_attn"} & set(sys.modules)
assert torch.cuda.current_device is before
start("auto", False), start("cpu", True)
from flash_attn.bert_padding import unpad_input
assert torch.zeros(1).to(torch.cuda.current_device()).device.type == "cpu"
assert str(torch.device(f"cuda:{torch.cuda.current_device()}")) == "cuda:0"
"""


def test_the_cpu_backend_is_installed_without_cuda_or_where_asked_and_never_imported_otherwise():
    """One interpreter: launches on CUDA, refused launches, and only then launches on the CPU."""
    done = subprocess.run([sys.executable, "-c", LAUNCHES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *on_cuda, ring, triton, auto, other, rest = done.stdout.split("--\n")
    assert len(on_cuda) == 2 and rest == ""
    assert all("device: cuda" in said and "mixins []" in said and "ran" in said.split() for said in on_cuda)
    assert all(said.endswith("ran\n[openrlhf_shear] model     out\n") for said in (*on_cuda, auto, other))
    assert all("device: cpu" in said and "PolicyModelActor" in said and "ran" in said.split() for said in (auto, other))
    assert "ds.ring_attn_size needs the package ring_flash_attn, which is not installed: got 2" in ring
    assert "credit.backend triton cannot be used: it needs hidden states on cuda, they are on cpu" in triton
    assert not {"ran", "model"} & {*ring.split(), *triton.split()}


def test_flash_attn_stand_in_unpads_and_pads():
    from openrlhf_shear.train.cpu.flash_attn_stand_in import pad_input, unpad_input

    mask = torch.tensor([[0, 1, 1], [1, 0, 1], [0, 0, 0]])
    tensor = torch.arange(9.0).view(3, 3, 1)
    tokens, indices, cumulative, longest, lengths = unpad_input(tensor, mask)
    assert tokens.flatten().tolist() == [1, 2, 3, 5]
    assert indices.tolist() == [1, 2, 3, 5]
    assert cumulative.tolist() == [0, 2, 4, 4] and longest == 2 and lengths.tolist() == [2, 2, 0]
    assert torch.equal(pad_input(tokens, indices, 3, 3), tensor * mask[..., None])


def described(**changed) -> Run:
    gpus = {"actor": 2, "ref": 2, "critic": 1, "reward": 1, "prm": 8}
    values = {f"{model}.num_nodes": 1 for model in gpus}
    values |= {f"{model}.num_gpus_per_node": number for model, number in gpus.items()}
    values |= {"vllm.num_engines": 2, "vllm.tensor_parallel_size": 2, "algo.kl.init_coef": 0.0}
    values |= {"train.agent_func_path": None, "reward.remote_url": "reward.py"}
    values["algo.advantage.estimator"] = "group_norm"
    switches = ("colocate_all", "async_enable", "colocate_actor_ref", "colocate_critic_reward")
    spec = ("spec" in changed and CreditSpec(changed.pop("spec"))) or None
    flags = values | {f"train.{name}": False for name in switches} | changed
    return Run(flags, spec=spec, traits=spec and spec.traits)


@pytest.mark.parametrize(*cases("train", "test_gpus_a_run_needs"))
def test_gpus_a_run_needs(changed, expected):
    assert cluster.gpus_needed(described(**changed)) == expected


@pytest.fixture
def ray(monkeypatch, tmp_path):
    """The calls of `ray.init`, which makes a cluster of four GPUs. The environment is restored afterwards."""
    calls = []
    kept = {name: value for name, value in os.environ.items() if name not in (*own_ray.SETTINGS, *TOKENS)}
    monkeypatch.setattr(os, "environ", kept | {"VLLM_RPC_BASE_PATH": "/tmp"})  # whose sockets need a short path
    monkeypatch.setattr(own_ray, "reread", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cluster.ray, "init", lambda **kwargs: calls.append(kwargs))
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: bool(calls))
    for asked in ("cluster_resources", "available_resources"):
        monkeypatch.setattr(cluster.ray, asked, lambda: {"GPU": 4.0, "CPU": 8.0})
    return calls


def test_too_few_gpus_are_refused_where_ray_would_wait_for_ever(ray):
    cluster.join(4)
    with pytest.raises(RefusedError, match="8 GPUs are needed, the Ray cluster has 4; use fewer"):
        cluster.join(8)


def test_gpus_that_are_yet_to_come_are_waited_for(ray, monkeypatch, capsys):
    later = iter([4.0, 6.0])
    monkeypatch.setattr(cluster.ray, "cluster_resources", lambda: {"GPU": next(later, 8.0)})
    free = iter([{}, {"GPU": 2.0}])
    monkeypatch.setattr(cluster.ray, "available_resources", lambda: next(free, {"GPU": 8.0}))
    monkeypatch.setattr(cluster.time, "sleep", lambda _: None)
    cluster.join(8, patience=60.0)
    told = capsys.readouterr().out
    assert told.count("waiting for GPUs: 8 are needed, the cluster has 4") == 1
    assert told.count("waiting for free GPUs: 8 are needed, 0 of 8 are free (`ray list jobs`)") == 1


@pytest.mark.parametrize(("attempt", "asked", "expected"), [("0", 5.0, 5.0), ("1", 5.0, 600.0), ("2", 900.0, 900.0)])
def test_what_is_started_again_waits_for_a_node_to_come_back(monkeypatch, attempt, asked, expected):
    monkeypatch.setenv(attempts.ATTEMPT, attempt)
    assert attempts.patience(asked) == expected


def test_cluster_with_too_few_logical_gpus_is_refused_with_the_remedy(ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "here:1")
    monkeypatch.setattr(cluster, "cluster_address", lambda: ("here:1", ""))
    cluster.join_on_cpu(4, "setup", {})
    with pytest.raises(RefusedError, match=r"6 GPUs are needed, the Ray cluster has 4;.* ray start .*--num-gpus 6"):
        cluster.join_on_cpu(6, "setup", {})
    assert [call["address"] for call in ray] == ["here:1"]


@pytest.mark.parametrize("asked", ["", "local", "auto", "{}"])
def test_a_cluster_is_joined_only_where_that_is_asked_for(ray, monkeypatch, tmp_path, capsys, asked):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(cluster, "socket_problem", lambda: None)  # of a folder as long as this
    monkeypatch.setenv("RAY_agent_register_timeout_ms", "1")
    (tmp_path / "ray").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        (tmp_path / "ray" / "ray_current_cluster").write_text(address + "\n")
        monkeypatch.setenv("RAY_ADDRESS", asked.format(address))
        cluster.join(2)
        monkeypatch.setattr(cluster.ray, "is_initialized", lambda: len(ray) > 1)
        cluster.join_on_cpu(2, "setup", {"A": "1"})
    joined = asked.format(address) or "local"
    own = joined == "local"
    patience, reconnects = "RAY_agent_register_timeout_ms", "RAY_gcs_rpc_server_reconnect_timeout_s"
    assert os.environ[patience] == "1", "the user's"
    assert os.environ.get(reconnects) == ("10" if own else None)
    assert [call["address"] for call in ray] == [joined, joined]
    assert [call.get("_node_ip_address") for call in ray] == ["127.0.0.1" if own else None] * 2
    assert ray[1]["runtime_env"] == {"worker_process_setup_hook": "setup", "env_vars": {"A": "1"}}
    said = capsys.readouterr().out
    assert (f"RAY_ADDRESS={address} joins the one that runs here" in said) == own
    assert ("asks for no token: who reaches its ports runs code as you; set RAY_AUTH_MODE" in said) != own


@pytest.mark.parametrize(
    ("given", "made", "said"),
    [
        ({}, True, ""),
        ({"RAY_AUTH_MODE": "token"}, True, ""),
        ({"RAY_AUTH_TOKEN": "of the user"}, False, ""),
        ({"RAY_AUTH_TOKEN_PATH": __file__}, False, ""),
        (
            {"RAY_AUTH_MODE": "disabled"},
            False,
            "RAY_AUTH_MODE=disabled: who reaches a port of this Ray runs code as you",
        ),
    ],
)
def test_a_run_makes_a_token_where_the_user_has_none(ray, monkeypatch, tmp_path, capsys, given, made, said):
    monkeypatch.setattr(cluster.ray, "shutdown", lambda: None)
    os.environ.update(given)
    own_ray.start({"env_vars": {}})
    tokens = list(tmp_path.iterdir())
    assert len(tokens) == made and said in capsys.readouterr().out
    assert os.environ["RAY_AUTH_MODE"] == given.get("RAY_AUTH_MODE", "token")
    assert "RAY_AUTH_TOKEN" not in os.environ or "RAY_AUTH_TOKEN" in given, "the secret is in a file alone"
    if made:
        assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(tokens[0]) and len(tokens[0].read_text()) == 64
        assert stat.S_IMODE(tokens[0].stat().st_mode) == 0o600
    own_ray.end()
    assert not list(tmp_path.iterdir()) and Path(__file__).exists()


def test_a_token_that_cannot_be_read_is_refused(ray):
    os.environ["RAY_AUTH_TOKEN_PATH"] = "/nowhere/token"
    with pytest.raises(RefusedError, match=r"RAY_AUTH_TOKEN_PATH cannot be read: .*/nowhere/token.*; unset it"):
        cluster.join(1)
    assert not ray


@pytest.mark.parametrize("kind", [ConnectionError, cluster.ray.exceptions.AuthenticationError])
def test_a_cluster_that_asks_for_a_token_is_named(monkeypatch, kind):
    def init(**_):
        raise kind("it failed")

    monkeypatch.setattr(cluster.ray, "init", init)
    told = r"the Ray cluster at here:1 does not let this run in \(it failed.*\); if it asks .* set RAY_AUTH_MODE=token"
    with pytest.raises(RefusedError, match=told):
        cluster.enter("here:1")


def test_a_cluster_that_has_ended_is_refused_at_once(ray, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", "{}:{}".format(*server.getsockname()))
    for join in (lambda: cluster.join(2), lambda: cluster.join_on_cpu(2, "setup", {})):
        with pytest.raises(RefusedError, match=r"nothing answers at RAY_ADDRESS 127.0.0.1:\d+: .*refused"):
            join()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RefusedError, match="nothing answers at RAY_ADDRESS"):
        cluster.uses_cpu("auto")
    with pytest.raises(LineError, match="nothing answers at RAY_ADDRESS"):
        machine.cluster_gpus()
    assert not ray


@pytest.mark.parametrize("asked", ["", "local"])
def test_an_empty_address_is_none(ray, monkeypatch, asked):
    monkeypatch.setenv("RAY_ADDRESS", asked)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cluster.gpu, "probe", Gpus)
    assert cluster.uses_cpu("auto") and layout.own_ray() and layout.shape("cpu", 0.0) == (1, 1, True)
    assert not ray


def test_variables_that_the_job_sets_are_left_to_it(ray, monkeypatch):
    """Ray refuses a variable that `ray job submit --runtime-env` and `ray.init` both name."""
    monkeypatch.setenv("RAY_ADDRESS", "here:1")
    monkeypatch.setattr(cluster, "cluster_address", lambda: ("here:1", ""))
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": {"env_vars": {"A": "2"}}}))
    cluster.join_on_cpu(4, "setup", {"A": "2", "B": "3"})
    assert [call["runtime_env"]["env_vars"] for call in ray] == [{"B": "3"}]


OLD_DRIVER = Gpus("535.1", (12, 2), (Gpu("H100", 80, 80),), "13.0", 0)


@pytest.mark.parametrize(
    ("gpus", "visible", "refused"),
    [
        (OLD_DRIVER, None, True),
        (OLD_DRIVER, "", False),  # somebody wants it so
        (replace(OLD_DRIVER, torch_cuda=None), None, False),  # and here
        (Gpus(torch_cuda="13.0"), None, False),
    ],
)
def test_a_gpu_is_never_silently_left_out(monkeypatch, capsys, gpus, visible, refused):
    monkeypatch.setattr(cluster.gpu, "probe", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if refused:
        with pytest.raises(RefusedError, match=r"535\.1, runs CUDA up to 12\.2.* CUDA 13\.0: too old.*--device cpu"):
            cluster.uses_cpu("auto")
        return
    assert cluster.uses_cpu("auto")
    left_out = bool(gpus.devices) and visible is None
    assert ("the GPU of this machine is left out" in capsys.readouterr().out) == left_out


def test_the_address_file_is_ray_s_own(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert cluster.cluster_address()[0] == cluster.ray._private.utils.read_ray_address() == "127.0.0.1:1"


NODE = """
import subprocess, sys, types
from pathlib import Path
from openrlhf_shear.train.nodes import patient_node as p

p._TELL_SECONDS, p._LOOK_SECONDS = 0.05, 0.02
logs = Path(sys.argv[1])

def node(code):
    made = object.__new__(p.PatientNode)
    made._logs_dir, made.kill_all_processes = str(logs), lambda **how: print("others ended", how)
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    made.all_processes = {"raylet": [types.SimpleNamespace(process=process)]}
    return made
"""


def test_a_process_of_ray_that_ends_is_named_with_its_last_words(tmp_path):
    (tmp_path / "raylet.out").write_text("[x I] hello\n[x C] Check failed: no port file\n[x I] stack\n")
    code = NODE + "\nnode('raise SystemExit(3)')._wait_for('raylet', lambda: False)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "NotStartedError: Ray's raylet ended with exit code 3: [x C] Check failed: no port file" in done.stderr
    assert "others ended" in done.stdout


def test_a_slow_process_of_ray_is_waited_for_and_told_of(tmp_path):
    code = NODE + "\nlooks = iter([False] * 8 + [True])\nslow = node('input()')"
    code += "\nslow._wait_for('raylet', lambda: next(looks))\nslow.all_processes['raylet'][0].process.kill()"
    code += "\nprint('started')"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "started", done.stderr
    assert "starting Ray: waiting for its raylet, 0 s, load" in done.stdout
