"""Device of a run, its Ray cluster, and the number of GPUs that it needs."""

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import ray

from openrlhf_shear.doctor import gpu
from openrlhf_shear.line.run import Run
from openrlhf_shear.preflight.resources import ray_folder, socket_problem
from openrlhf_shear.train.nodes import own_ray, worker
from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.screen.story import say

NO_CUDA_HINT = "no CUDA device on this machine, nor a GPU type announced by the Ray cluster"
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set in a process that `ray job submit` started
_CONNECT_SECONDS = 5
_TOKEN_REMEDY = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH, before `ray start` on each node and here"


def uses_cpu(device: str) -> bool:
    """Return whether a run with this `--device` (auto, cuda or cpu) uses the CPU; print the device and the reason.

    Raises:
        RefusedError: on auto, torch was built for this machine's GPU but cannot use it, or as `named_cluster`.
    """
    import torch  # late: the doctor reports a broken torch, and does not call this

    if device != "auto":
        reason = f"--device {device}"
    elif torch.cuda.is_available():
        device, reason = "cuda", "CUDA is available"
    elif named_cluster() and _cluster_has_accelerators():
        device, reason = "cuda", "the Ray cluster announces GPUs"
    else:
        device, reason, gpus = "cpu", NO_CUDA_HINT, gpu.probe()
        if gpus.devices and os.environ.get("CUDA_VISIBLE_DEVICES", "all") not in ("", "-1"):
            driver = gpu.driver(gpus)
            if gpus.torch_cuda is not None:
                remedy = f"{driver.remedy}, or use --device cpu"
                raise RefusedError(f"torch cannot use the GPU of this machine: {driver.seen}; {remedy}")
            say(f"the GPU of this machine is left out: {driver.seen}")
    say(f"device: {device} ({reason})")
    return device == "cpu"


def _cluster_has_accelerators() -> bool:
    """Return whether a running cluster has real GPUs: their nodes announce a type; `--num-gpus` alone does not."""
    connected = ray.is_initialized()
    if not connected:
        enter(os.environ["RAY_ADDRESS"], log_to_driver=False)
    announced = any(name.startswith("accelerator_type:") for name in ray.cluster_resources())
    if not connected:
        ray.shutdown()
    return announced


def cluster_address() -> tuple[str, str]:
    """Return the address of the cluster to join, and why it does not answer.

    The address is HOST:PORT or ray://HOST:PORT, from RAY_ADDRESS or else of the cluster last started on this machine;
    "" for none. The reason is "" if the cluster answers. Ray itself waits minutes for a dead cluster.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "auto", "local"):
        file = Path(ray_folder()[1], "ray", "ray_current_cluster")  # written by `ray start`
        address = file.read_text().strip() if file.is_file() else ""
    if not address:
        return "", ""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return address, str(error)
    return address, ""


def named_cluster() -> str:
    """Return RAY_ADDRESS, which `ray job submit` sets too; "" if this run starts a private Ray.

    Raises:
        RefusedError: nothing answers there, and Ray would wait for minutes.
    """
    setting = os.environ.get("RAY_ADDRESS", "")
    if setting in ("", "local"):
        return ""
    address, silence = cluster_address()
    if silence:
        raise RefusedError(
            f"nothing answers at RAY_ADDRESS {address}: {silence}; set the address of a running cluster, or unset it"
        )
    return setting


def join(gpus: int, patience: float = 0.0) -> None:
    """Join or start Ray, unless this process has, before OpenRLHF's main does: this fork then handles the signals.

    Raises:
        RefusedError: the cluster has fewer than `gpus` after `patience` seconds; Ray would wait for ever.
    """
    defaults = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}
    shared = {"env_vars": {name: os.environ.get(name, value) for name, value in defaults.items()}}
    _join(shared, shared | {"worker_process_setup_hook": worker.WORKER_SETUP_HOOK})
    _await_gpus(gpus, patience, "use fewer")


def join_on_cpu(gpus: int, setup_hook: str, environment: Mapping[str, str], patience: float = 0.0) -> None:
    """Join the cluster at RAY_ADDRESS, else start a private Ray with logical GPUs.

    Args:
        setup_hook: dotted name of the function that every worker calls at its start.
        environment: environment variables of every worker.

    Raises:
        RefusedError: the cluster has fewer than `gpus`, after `patience` seconds.
    """
    runtime_env = {"worker_process_setup_hook": setup_hook, "env_vars": dict(environment)}
    # A CPU per bundle, one for the trainer, one spare.
    _join(runtime_env, runtime_env, num_gpus=gpus, num_cpus=max(os.cpu_count() or 1, gpus + 2))
    _await_gpus(gpus, patience, f"on a CPU machine declare logical ones: ray start --head --num-gpus {gpus}")


def _join(shared: dict, private: dict, **resources: int) -> None:
    """Join a user's Ray with the runtime environment `shared`, or start a private Ray with `private`.

    A Ray found on this machine may belong to another run, and end with it, or to another user.

    Raises:
        RefusedError: as `named_cluster` or `enter`, or a private Ray could not create its sockets.
    """
    if ray.is_initialized():
        return
    if address := named_cluster():
        job = json.loads(os.environ.get(_JOB, "{}")).get("runtime_env", {}).get("env_vars", {})
        # Ray refuses a variable that the job sets already. This process has the job's value of it.
        missing = {name: value for name, value in shared["env_vars"].items() if name not in job}
        enter(address, runtime_env=shared | {"env_vars": missing})
        if not own_ray.requires_token():
            remedy = f"who reaches its ports runs code as you; {_TOKEN_REMEDY}"
            say(f"the Ray cluster at {address} asks for no token: {remedy}")
        return
    if problem := socket_problem():
        raise RefusedError(str(problem))
    address, silence = cluster_address()
    if address and not silence:
        say(f"starting Ray; RAY_ADDRESS={address} joins the one that runs here")
    own_ray.start(private, **resources)


def enter(address: str, **options) -> None:
    """Join a running Ray; `options` go to `ray.init`.

    Raises:
        RefusedError: it cannot be joined, usually because it requires a token that the environment lacks.
    """
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ray.exceptions.AuthenticationError) as error:
        what = f"the Ray cluster at {address} does not let this run in ({str(error).splitlines()[0][:200]})"
        raise RefusedError(f"{what}; if it asks for a token: {_TOKEN_REMEDY}") from None


def _await_gpus(needed: int, patience: float, advice: str) -> None:
    end, silent = time.monotonic() + patience, True
    while (has := ray.cluster_resources().get("GPU", 0)) < needed:
        if time.monotonic() >= end:
            raise RefusedError(f"{needed} GPUs are needed, the Ray cluster has {has:g}; {advice}")
        if silent:
            say(f"waiting for GPUs: {needed} are needed, the cluster has {has:g}")
        silent = False
        time.sleep(1.0)
    silent = True
    while (free := ray.available_resources().get("GPU", 0)) < needed:
        if silent:
            say(f"waiting for free GPUs: {needed} are needed, {free:g} of {has:g} are free (`ray list jobs`)")
        silent = False
        time.sleep(1.0)


def gpus_needed(run: Run) -> int:
    """Return the number of GPUs (logical on a CPU machine) that OpenRLHF's placement groups will request."""
    ranks, engines = run.ranks, (run.vllm.num_engines or 0) * run.vllm.tensor_parallel_size
    # OpenRLHF then makes a placement group for these two, also if all others share one.
    critic_and_reward = run.estimator == "gae" and run.train.colocate_critic_reward
    if run.train.colocate_all:
        own = ranks["critic"] if critic_and_reward else 0
        return ranks["actor"] + own + (engines if run.train.async_enable else 0)
    total = ranks["actor"] + engines
    if run.algo.kl.init_coef > 0 and not run.train.colocate_actor_ref:
        total += ranks["ref"]
    if run.estimator == "gae":
        total += ranks["critic"]
    if not run.graded and not critic_and_reward:
        total += ranks["reward"]
    if "prm_scores" in run.traits.needs:
        total += ranks["prm"]
    return total
