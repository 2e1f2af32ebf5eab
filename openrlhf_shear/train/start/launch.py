"""Launch of a job from parsed arguments: choose the device, connect to Ray, hook OpenRLHF, run its main."""

import argparse
import os
from dataclasses import replace

import ray

from openrlhf_shear.credit.prm.steps import load_encoder
from openrlhf_shear.kernels.backends import check_device
from openrlhf_shear.line.run import Run
from openrlhf_shear.preflight.architecture import against_architecture
from openrlhf_shear.preflight.layout import ring_package
from openrlhf_shear.preflight.models import read_model
from openrlhf_shear.rewards.function_workers import file_digest
from openrlhf_shear.rewards.settings import RewardSettings, read_token
from openrlhf_shear.train import hooks, upstream
from openrlhf_shear.train.nodes import cluster
from openrlhf_shear.train.screen.outcome import RefusedError, RunEndedError
from openrlhf_shear.train.screen.story import doing, say
from openrlhf_shear.train.start import attempts
from openrlhf_shear.train.upstream import plain_class

_ENGINE_RESTARTS = 64  # per engine and run
_ENGINE_CALLS = 100_000  # at once: an incomplete batch waits in vLLM (`RewardRolloutActor.hold`), not in Ray


def launch(run: Run, args: argparse.Namespace) -> None:
    """Run a training job to its end.

    Args:
        run: the description of the run.
        args: the same for OpenRLHF's main (`line.run.for_openrlhf`).

    Raises:
        ValueError: the requested backend does not run on the device, ring attention lacks its package, or the process
            reward model's tokenizer does not know its format.
        RunEndedError: the run ended on purpose, or was refused because the Ray cluster has too few (logical) GPUs.
    """
    on_cpu = cluster.uses_cpu(run.device)
    if not on_cpu:
        ring_package(run)
    elif run.data.max_images_per_prompt > 0:
        try:
            import torchvision  # noqa: F401 (so the processes of the run can, too)
        except (ImportError, RuntimeError) as error:  # RuntimeError: CUDA's wheel, without `cpu.torchvision_names`
            remedy = "run scripts/setup_tests.sh, and start with its folder in PYTHONPATH (docs/parallelism.md)"
            raise RefusedError(f"--data.max_images_per_prompt needs torchvision: {error}; {remedy}") from error
    if "hidden_states" in run.traits.needs:
        check_device(run.spec.search.backend, "cpu" if on_cpu else "cuda")
    if "prm_scores" in run.traits.needs:
        load_encoder(run.spec.prm)
    policy = read_model("actor.model_name_or_path", run.actor.model_name_or_path, run.use_ms)
    for problem in against_architecture(policy):
        raise RefusedError(str(problem))
    doing("starting Ray")
    with attempts.own_handlers():
        mixins = _join(on_cpu, cluster.gpus_needed(run), attempts.patience(run.train.wait_for_gpus))
    from openrlhf_shear.train.sampling.engine_gap import log_probs_mode  # late, as in install_hooks

    mode = log_probs_mode(run.rollout.temperature, run.rollout.top_p)
    install_hooks(mixins, reward_settings(run), mode, not run.flags["data.disable_fast_tokenizer"])
    doing("placing and loading the models")
    run_main(args)
    say(f"model     {run.ckpt.output_dir}")


def connect(device: str, gpus: int) -> None:
    """Join or start Ray, unless this process has, and hook OpenRLHF's classes, for jobs other than training.

    Args:
        gpus: the number of GPUs that the job needs; logical GPUs on a CPU machine.

    Raises:
        RefusedError: the Ray cluster has too few GPUs.
    """
    install_hooks(_join(cluster.uses_cpu(device), gpus))


def _join(on_cpu: bool, gpus: int, patience: float = 0.0) -> dict[hooks.Patch, type]:
    """Join or start Ray; return the mixins that the device needs."""
    if not on_cpu:
        cluster.join(gpus, patience)
        return {}
    from openrlhf_shear.train.cpu import backend as cpu_backend  # late: never loaded on CUDA

    cpu_backend.install()
    environment = {name: os.environ[name] for name in cpu_backend.ENVIRONMENT}
    cluster.join_on_cpu(gpus, cpu_backend.WORKER_SETUP_HOOK, environment, patience)
    return cpu_backend.MIXINS


def reward_settings(run: Run) -> RewardSettings | None:
    """Return the settings of the grader; None if rewards come from a model or an agent."""
    reward = run.reward.remote_url
    if not reward or run.train.agent_func_path:
        return None
    names = ("cores", "timeout", "memory_mb", "allow_unsandboxed", "retries", "answer_format")
    chosen = RewardSettings(reward, **{name: run.flags[f"reward.{name}"] for name in names})
    if chosen.is_served:
        return replace(chosen, token=read_token(run.reward.token_file))
    return replace(chosen, digest=file_digest(reward)) if reward.endswith(".py") else chosen


def install_hooks(
    mixins: dict[hooks.Patch, type],
    reward: RewardSettings | None = None,
    log_probs_mode: str | None = None,
    fast_tokenizer: bool = True,
) -> None:
    """Put the fork's classes where OpenRLHF's main will look for its own.

    Args:
        mixins: classes of the CPU backend to put in front of the fork's, by the patch they change; empty on CUDA.
        reward: the result of `reward_settings`.
        log_probs_mode: vLLM's mode for the engines' log-probs.
        fast_tokenizer: not --data.disable_fast_tokenizer.
    """
    # Late: on a CPU machine, their imports of OpenRLHF need the stand-ins.
    from openrlhf_shear.train.experience.states import ShearActorGroup
    from openrlhf_shear.train.run.trainer_actor import TrainerActor
    from openrlhf_shear.train.sampling.engine import RewardRolloutActor
    from openrlhf_shear.train.screen.relay import Followed
    from openrlhf_shear.train.update.actor import ShearCriticActor, ShearPolicyActor
    from openrlhf_shear.train.update.strategy import ShearStrategy

    def mixed(patch: hooks.Patch, base: type) -> type:
        return type(base.__name__, (mixins[patch], base), {}) if patch in mixins else base

    settings = {"reward": reward, "log_probs_mode": log_probs_mode, "fast_tokenizer": fast_tokenizer}
    engine = type(plain_class(hooks.ENGINE.get()).__name__, (RewardRolloutActor,), settings)
    hooks.POLICY.put(ray.remote(num_gpus=1)(mixed(hooks.POLICY, ShearPolicyActor)))
    hooks.CRITIC.put(ray.remote(num_gpus=1)(ShearCriticActor))
    trainer = type(TrainerActor.__name__, (TrainerActor,), {"reward": reward})
    groups = {"control": 1, "output": 1}
    followed = Followed(ray.remote(concurrency_groups=groups)(trainer).options(name=attempts.TRAINER))
    for patch in (hooks.TRAINER, hooks.ASYNC_TRAINER):
        patch.put(followed)
    hooks.ACTOR_GROUP.put(ShearActorGroup)
    # The handle survives a restart. Calls in flight fail, and the caller retries (engines.Engines).
    often = {"max_restarts": _ENGINE_RESTARTS, "max_concurrency": _ENGINE_CALLS}
    hooks.ENGINE.put(ray.remote(**often)(mixed(hooks.ENGINE, engine)))
    hooks.STRATEGY.put(mixed(hooks.STRATEGY, ShearStrategy))


def run_main(args: argparse.Namespace) -> None:
    """Run OpenRLHF's `train_ppo_ray` with parsed arguments (`upstream.run`).

    Raises:
        RunEndedError: the run ended on purpose (`outcome`).
    """
    try:
        upstream.run(args)
    except ray.exceptions.RayTaskError as error:
        if not isinstance(error.cause, RunEndedError):
            raise
        raise error.cause from None
    finally:
        hooks.TRAINER.get().close()
