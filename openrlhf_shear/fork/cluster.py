"""The device of a run, the Ray cluster it runs on, and how many GPUs it needs."""

import math
import os
import socket
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import ray

from openrlhf_shear.config.secrets import hidden
from openrlhf_shear.fork import loopback, own_ray
from openrlhf_shear.fork.outcome import RefusedError
from openrlhf_shear.fork.story import say
from openrlhf_shear.preflight.doctor import gpu
from openrlhf_shear.preflight.rules import needs_prm
from openrlhf_shear.preflight.sockets import socket_problem

NO_CUDA_HINT = "no CUDA device on this machine, nor a GPU type announced by the Ray cluster"
_CONNECT_SECONDS = 5
_TELL_SECONDS = 60.0
_TOKEN_REMEDY = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH, before `ray start` on each node and here"


def uses_cpu(asked: str) -> bool:
    """Whether a run on the device `asked` (auto, cuda or cpu) goes to the CPU; says which device it is, and why.

    Raises:
        RefusedError: on auto, there is a GPU that torch was built for and cannot use.
    """
    import torch  # the doctor, which does not ask this, tells of one that is broken

    if asked != "auto":
        reason = f"--device {asked}"
    elif torch.cuda.is_available():
        asked, reason = "cuda", "CUDA is available"
    elif os.environ.get("RAY_ADDRESS", "local") != "local" and _cluster_has_accelerators():
        asked, reason = "cuda", "the Ray cluster announces GPUs"
    else:
        asked, reason = "cpu", NO_CUDA_HINT
        _refuse_a_gpu_left_out()
    say(f"device: {asked} ({reason})")
    return asked == "cpu"


def _refuse_a_gpu_left_out() -> None:
    gpus = gpu.probe()
    if not gpus.devices or os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return
    driver = gpu.driver(gpus)
    if gpus.torch_cuda is None:
        say(f"the GPU of this machine is left out: {driver.seen}")
        return
    raise RefusedError(f"torch cannot use the GPU of this machine: {driver.seen}; {driver.remedy}, or use --device cpu")


def _cluster_has_accelerators() -> bool:
    """Whether a running cluster has real GPUs: nodes announce their type; `--num-gpus` on a CPU machine does not."""
    connected = ray.is_initialized()
    if not connected:
        enter(os.environ["RAY_ADDRESS"], log_to_driver=False)
    announced = any(name.startswith("accelerator_type:") for name in ray.cluster_resources())
    if not connected:
        ray.shutdown()
    return announced


def cluster_address() -> tuple[str, str]:
    """HOST:PORT or ray://HOST:PORT of the cluster to join, RAY_ADDRESS or else the one last started on this machine
    ("" for none), and why nobody answers there ("" if somebody does). Ray itself waits minutes for one that is gone.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "auto", "local"):
        folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
        file = Path(folder, "ray", "ray_current_cluster")  # `ray start` names it
        address = file.read_text().strip() if file.is_file() else ""
    if not address:
        return "", ""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return address, str(error)
    return address, ""


def join(gpus: int, patience: float = 0.0) -> None:
    """Join or start Ray as OpenRLHF's main would, if that is not done: before it, so that its signals can be ours.

    Raises:
        RefusedError: the cluster has fewer than `gpus`, for which Ray would wait for ever, after `patience` seconds.
    """
    if not ray.is_initialized():
        defaults = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}
        environment = {name: os.environ.get(name, value) for name, value in defaults.items()}
        if (address := _address()) == "local":
            own_ray.start({"env_vars": environment, "worker_process_setup_hook": loopback.WORKER_SETUP_HOOK})
        else:
            _join_a_users(address, {"env_vars": environment})
    _await_gpus(gpus, patience, "use fewer")


def enter(address: str, **options) -> None:
    """Join a Ray that runs, by `ray.init` with more options.

    Raises:
        RefusedError: it cannot be joined, mostly as it asks for a token that the environment does not hold.
    """
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ray.exceptions.AuthenticationError) as error:
        what = f"the Ray cluster at {address} does not let this run in ({str(error).splitlines()[0][:200]})"
        raise RefusedError(f"{what}; if it asks for a token: {_TOKEN_REMEDY}") from None


def _join_a_users(address: str, runtime_env: dict) -> None:
    enter(address, runtime_env=runtime_env)
    if not own_ray.is_token_asked():
        say(f"the Ray cluster at {address} asks for no token: who reaches its ports runs code as you; {_TOKEN_REMEDY}")


def _address() -> str:
    """RAY_ADDRESS, which `ray job submit` sets too, or "local" for a Ray of this run's own: the one that is found on a
    machine may be another run's, which ends with it, or another user's.

    Raises:
        RefusedError: nobody answers at RAY_ADDRESS, where Ray would wait for minutes; or one that is started here could
            make no sockets.
    """
    asked = os.environ.get("RAY_ADDRESS") or "local"
    address, silence = cluster_address()
    if asked != "local" and silence:
        raise RefusedError(
            f"nothing answers at RAY_ADDRESS {address}: {silence}; set that of a running cluster, or none"
        )
    if asked == "local" and (problem := socket_problem()):
        raise RefusedError(str(problem))
    if asked == "local" and address and not silence:
        say(f"starting Ray; RAY_ADDRESS={address} joins the one that runs here")
    return asked


def _await_gpus(needed: int, patience: float, advice: str) -> None:
    end, told = time.monotonic() + patience, False
    while (has := ray.cluster_resources().get("GPU", 0)) < needed:
        if time.monotonic() >= end:
            raise RefusedError(f"{needed} GPUs are needed, the Ray cluster has {has:g}; {advice}")
        if not told:
            say(f"waiting for GPUs: {needed} are needed, the cluster has {has:g}")
        told = True
        time.sleep(1.0)
    told_at = -math.inf
    while (free := ray.available_resources().get("GPU", 0)) < needed:
        if time.monotonic() - told_at > _TELL_SECONDS:
            told_at = time.monotonic()
            say(f"waiting for free GPUs: {needed} are needed, {free:g} of {has:g} are free; {_held()}")
        time.sleep(1.0)


def _held() -> str:
    """Which jobs have the others, as far as Ray's dashboard tells."""
    from ray.util.state import list_jobs, list_placement_groups

    try:
        jobs = {job.job_id: job.entrypoint for job in list_jobs(timeout=_CONNECT_SECONDS)}
        groups = list_placement_groups(filters=[("state", "=", "CREATED")], detail=True, timeout=_CONNECT_SECONDS)
    except Exception as error:  # of many kinds: no dashboard, a slow one, another version of it
        return f"what holds the others is not known: {str(error).splitlines()[0][:200]}"
    gpus = Counter()
    for group in groups:
        gpus[group.creator_job_id] += sum(bundle["unit_resources"].get("GPU", 0) for bundle in group.bundles)
    held = [f"{n:g} by job {job} ({hidden(jobs.get(job) or 'a driver')[:120]})" for job, n in gpus.items() if n]
    return f"held are {'; '.join(held)}" if held else "tasks or actors without a placement group have the others"


def join_on_cpu(gpus: int, setup_hook: str, environment: Mapping[str, str], patience: float = 0.0) -> None:
    """Join the cluster of RAY_ADDRESS, else start one with logical GPUs.

    Args:
        setup_hook: dotted name of what every worker calls at its start.
        environment: of every worker.

    Raises:
        RefusedError: the cluster has fewer than `gpus`, after `patience` seconds.
    """
    runtime_env = {"worker_process_setup_hook": setup_hook, "env_vars": dict(environment)}
    address = _address()
    if address != "local" and not ray.is_initialized():
        _join_a_users(address, runtime_env)
    if not ray.is_initialized():
        # Besides the bundles' own CPUs: one for the trainer, one to spare.
        resources = {"num_gpus": gpus, "num_cpus": max(os.cpu_count() or 1, gpus + 2)}
        own_ray.start(runtime_env, include_dashboard=False, **resources)
    _await_gpus(gpus, patience, f"on a CPU machine declare logical ones: ray start --head --num-gpus {gpus}")


def gpus_needed(options: dict) -> int:
    """GPUs (logical ones on a CPU machine) that OpenRLHF's placement groups will ask for."""

    def group(name: str) -> int:
        return options[f"{name}.num_nodes"] * options[f"{name}.num_gpus_per_node"]

    engines = (options["vllm.num_engines"] or 0) * options["vllm.tensor_parallel_size"]
    if options["train.colocate_all"]:
        return group("actor") + (engines if options["train.async_enable"] else 0)
    scored_by_model = not options["reward.remote_url"] and not options["train.agent_func_path"]
    total = group("actor") + engines
    if options["algo.kl.init_coef"] > 0 and not options["train.colocate_actor_ref"]:
        total += group("ref")
    if options["algo.advantage.estimator"] == "gae":
        total += group("critic")
    if scored_by_model and not options["train.colocate_critic_reward"]:
        total += group("reward")
    if options["credit"] and needs_prm(options["credit"].estimator):
        total += options["credit"].prm.num_nodes * options["credit"].prm.num_gpus_per_node
    return total
