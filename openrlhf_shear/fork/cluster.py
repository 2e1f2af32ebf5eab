"""The device of a run, the Ray cluster it runs on, and how many GPUs it needs."""

from __future__ import annotations

import os
from collections.abc import Mapping

import ray
import torch

from openrlhf_shear.fork.ray_head import last_started, silence
from openrlhf_shear.preflight.rules import needs_prm

NO_CUDA_HINT = "no CUDA device on this machine, nor a GPU type announced by the Ray cluster"


def uses_cpu(asked: str) -> bool:
    """Whether a run goes to the CPU; says which device it is, and why.

    Args:
        asked: auto, cuda or cpu.
    """
    if asked != "auto":
        reason = f"--device {asked}"
    elif torch.cuda.is_available():
        asked, reason = "cuda", "CUDA is available"
    elif os.environ.get("RAY_ADDRESS", "local") != "local" and _cluster_has_accelerators():
        asked, reason = "cuda", "the Ray cluster announces GPUs"
    else:
        asked, reason = "cpu", NO_CUDA_HINT
    print(f"[openrlhf_shear] device: {asked} ({reason})", flush=True)
    return asked == "cpu"


def _cluster_has_accelerators() -> bool:
    """Whether a running cluster has real GPUs: nodes announce their type; `--num-gpus` on a CPU machine does not."""
    connected = ray.is_initialized()
    if not connected:
        ray.init(log_to_driver=False)
    announced = any(name.startswith("accelerator_type:") for name in ray.cluster_resources())
    if not connected:
        ray.shutdown()
    return announced


def join(gpus: int) -> None:
    """Join or start Ray, if that is not done, on a machine with GPUs.

    Raises:
        RuntimeError: the cluster has fewer than `gpus`, for which Ray would wait for ever.
    """
    if not ray.is_initialized():
        ray.init()
    has = ray.cluster_resources().get("GPU", 0)
    if has < gpus:
        raise RuntimeError(f"{gpus} GPUs are needed, the Ray cluster has {has:g}; use fewer engines")


def join_on_cpu(gpus: int, setup_hook: str, environment: Mapping[str, str]) -> None:
    """Join the cluster there is (`RAY_ADDRESS`, or one started on this machine), else start one with logical GPUs.

    Args:
        gpus: logical ones.
        setup_hook: dotted name of what every worker calls at its start.
        environment: of every worker.

    Raises:
        RuntimeError: the cluster has fewer than `gpus`.
    """
    runtime_env = {"worker_process_setup_hook": setup_hook, "env_vars": dict(environment)}
    address = os.environ.get("RAY_ADDRESS") or ("auto" if _cluster_answers() else "local")
    if address != "local" and not ray.is_initialized():
        try:
            ray.init(address=address, runtime_env=runtime_env)
        except ConnectionError:
            if os.environ.get("RAY_ADDRESS"):  # an empty one names no cluster
                raise
    if not ray.is_initialized():
        # Besides the bundles' own CPUs: one for the trainer, one to spare.
        ray.init(
            address="local",
            num_gpus=gpus,
            num_cpus=max(os.cpu_count() or 1, gpus + 2),
            include_dashboard=False,
            runtime_env=runtime_env,
        )
    has = ray.cluster_resources().get("GPU", 0)
    if has < gpus:
        raise RuntimeError(
            f"this run needs {gpus} logical GPUs, the Ray cluster has {has:g}; on a CPU machine declare them: "
            f"ray start --head --num-gpus {gpus}"
        )


def _cluster_answers() -> bool:
    """Whether the cluster last started on this machine is still there."""
    address = last_started()
    if not address:
        return True  # there may be another one that Ray finds by itself
    if silence(address):
        print(f"[openrlhf_shear] the Ray cluster at {address} is gone; starting one", flush=True)
        return False
    return True


def gpus_needed(options: dict) -> int:
    """GPUs (logical ones on a CPU machine) that OpenRLHF's placement groups will ask for."""

    def group(name: str) -> int:
        return options[f"{name}.num_nodes"] * options[f"{name}.num_gpus_per_node"]

    engines = (options["vllm.num_engines"] or 0) * options["vllm.tensor_parallel_size"]
    total = group("actor")
    if not options["train.colocate_all"] or options["train.async_enable"]:
        total += engines
    if options["train.colocate_all"]:
        return total
    if options["algo.kl.init_coef"] > 0 and not options["train.colocate_actor_ref"]:
        total += group("ref")
    if options["algo.advantage.estimator"] == "gae":
        total += group("critic")
    scored_by_model = not options["reward.remote_url"] and not options["train.agent_func_path"]
    if scored_by_model and not options["train.colocate_critic_reward"]:
        total += group("reward")
    if options["credit"] and needs_prm(options["credit"].estimator):
        total += options["credit"].prm.num_nodes * options["credit"].prm.num_gpus_per_node
    return total
