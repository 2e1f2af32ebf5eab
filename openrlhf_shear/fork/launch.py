"""From parsed arguments to a running job: choose the device, connect to Ray, hook OpenRLHF, run its main."""

from __future__ import annotations

import argparse
import os
import socket

import ray
import torch

from openrlhf_shear.credit.prm.conversation import load_encoder
from openrlhf_shear.fork import upstream
from openrlhf_shear.kernels.backends import check_device
from openrlhf_shear.preflight.rules import traits
from openrlhf_shear.rewards.pool import RewardSettings

NO_CUDA_HINT = "no CUDA device on this machine, nor a GPU type announced by the Ray cluster"


def launch(args: argparse.Namespace) -> None:
    """Train.

    Args:
        args: the flat namespace of `openrlhf_shear.cli.train_ppo_ray.parse`, with dotted names as OpenRLHF's parser
            gives them and `credit` a `CreditSpec` or None.

    Raises:
        ValueError: the backend that was asked for does not run on the device, or the process reward model's tokenizer
            does not know its format.
        RuntimeError: the Ray cluster has too few (logical) GPUs for a CPU run.
    """
    options = vars(args)
    uses_cpu = _uses_cpu(options["device"])
    needs = _needs(options)
    if "hidden_states" in needs:
        check_device(options["credit"].search.backend, "cpu" if uses_cpu else "cuda")
    if "prm_scores" in needs:
        load_encoder(options["credit"].prm)
    mixins = _cpu_mixins(gpus_needed(options)) if uses_cpu else {}
    upstream.install_hooks(mixins, reward_settings(options), options["train.async_enable"])
    upstream.run_main(args)


def _needs(options: dict) -> frozenset[str]:
    """What the run's credit rule must be given."""
    return traits(options["credit"].estimator).needs if options["credit"] else frozenset()


def connect(device: str, gpus: int) -> None:
    """Join or start Ray, if that is not done, for what is not training: OpenRLHF's classes are hooked, and actors may
    be made.

    Args:
        device: auto, cuda or cpu.
        gpus: how many will be asked for, logical ones on a CPU machine.

    Raises:
        RuntimeError: the Ray cluster has too few (logical) GPUs.
    """
    mixins = {}
    if _uses_cpu(device):
        mixins = _cpu_mixins(gpus)
    else:
        if not ray.is_initialized():
            ray.init()
        has = ray.cluster_resources().get("GPU", 0)
        if has < gpus:  # Ray would wait for them for ever
            raise RuntimeError(f"{gpus} GPUs are needed, the Ray cluster has {has:g}; use fewer engines")
    upstream.install_hooks(mixins)


def _cpu_mixins(gpus: int) -> dict[str, type]:
    from openrlhf_shear.fork import cpu_backend

    cpu_backend.install()
    _connect(gpus, cpu_backend)
    return cpu_backend.MIXINS


def reward_settings(options: dict) -> RewardSettings | None:
    """Of the pool that grades rollouts; None where rewards come from a model, over HTTP or from an agent."""
    reward = options["reward.remote_url"]
    served = not reward or reward.startswith(("http://", "https://"))
    if served or options["train.agent_func_path"]:
        return None
    return RewardSettings(
        reward,
        cores=options["reward.cores"],
        timeout=options["reward.timeout"],
        memory_mb=options["reward.memory_mb"],
        allow_unsandboxed=options["reward.allow_unsandboxed"],
    )


def _uses_cpu(asked: str) -> bool:
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
    found = any(name.startswith("accelerator_type:") for name in ray.cluster_resources())
    if not connected:
        ray.shutdown()
    return found


def _connect(needed: int, cpu_backend) -> None:
    """Join the cluster there is (`RAY_ADDRESS`, or one started on this machine), else start one with logical GPUs."""
    environment = {name: os.environ[name] for name in cpu_backend.ENVIRONMENT}
    runtime_env = {"worker_process_setup_hook": cpu_backend.WORKER_SETUP_HOOK, "env_vars": environment}
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
            num_gpus=needed,
            num_cpus=max(os.cpu_count() or 1, needed + 2),
            include_dashboard=False,
            runtime_env=runtime_env,
        )
    has = ray.cluster_resources().get("GPU", 0)
    if has < needed:
        raise RuntimeError(
            f"this run needs {needed} logical GPUs, the Ray cluster has {has:g}; on a CPU machine declare them: "
            f"ray start --head --num-gpus {needed}"
        )


def _cluster_answers() -> bool:
    """Whether the cluster last started on this machine is still there; Ray waits minutes for one that was killed."""
    address = ray._private.utils.read_ray_address()
    if not address:
        return True  # there may be another one that Ray finds by itself
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
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
    if "prm_scores" in _needs(options):
        total += options["credit"].prm.num_nodes * options["credit"].prm.num_gpus_per_node
    return total
