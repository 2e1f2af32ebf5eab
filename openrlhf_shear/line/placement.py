"""Default placement of models, by the GPUs of the machine or cluster; OpenRLHF's default is 8 GPUs for each model."""

from collections.abc import Collection, Mapping

from openrlhf_shear.line.run import ESTIMATOR, REWARD

_SHARING = ("train.colocate_all", "train.colocate_actor_ref", "train.colocate_critic_reward", "train.async_enable")
_SLEEP = ("vllm.enable_sleep", "ds.enable_sleep")
_WORLD = ("num_nodes", "num_gpus_per_node")


def is_open(flags: Mapping[str, object], set_flags: Collection[str]) -> bool:
    """Return whether the command line leaves some placement to `defaults`."""
    return any(f"{model}.num_gpus_per_node" not in set_flags for model in _models(flags))


def placed(flags: Mapping[str, object]) -> set[str]:
    """Return the flags of the nodes and GPUs of all models that a run uses."""
    return {f"{model}.{name}" for model in _models(flags) for name in _WORLD}


def defaults(
    flags: Mapping[str, object], set_flags: Collection[str], nodes: int, gpus: int, on_cpu: bool
) -> dict[str, object]:
    """Return values for the placement flags that the command line does not set.

    Without any placement flag, all models share all GPUs and take turns. Otherwise other models get the actor's layout.

    Args:
        set_flags: the flags of the command line, dotted names.
        nodes: nodes with GPUs.
        gpus: GPUs of each node; logical GPUs on a CPU machine.
        on_cpu: there are no GPUs, so nothing can sleep.
    """
    models, chosen = _models(flags), {}
    decided = {*_SHARING, "vllm.num_engines", *(f"{model}.{name}" for model in models for name in _WORLD)}
    if not decided.intersection(set_flags):
        engine = flags["vllm.tensor_parallel_size"]
        chosen = {"train.colocate_all": True, "vllm.num_engines": max(1, nodes * gpus // engine)}
        chosen |= dict.fromkeys(() if on_cpu else _SLEEP, True)
        chosen |= {"actor.num_nodes": nodes} if nodes > 1 else {}
    if "actor.num_gpus_per_node" not in set_flags:
        chosen["actor.num_gpus_per_node"] = gpus
    of_actor = {name: chosen.get(f"actor.{name}", flags[f"actor.{name}"]) for name in _WORLD}
    chosen |= {f"{model}.{name}": of_actor[name] for model in models[1:] for name in _WORLD}
    return {flag: value for flag, value in chosen.items() if flag not in set_flags and flags[flag] != value}


def words(chosen: Mapping[str, object]) -> list[str]:
    """Return placement flags as words of a command line."""
    return [word for flag, value in chosen.items() for word in (f"--{flag}", *([] if value is True else [f"{value}"]))]


def _models(flags: Mapping[str, object]) -> list[str]:
    graded = flags[REWARD] or flags["train.agent_func_path"]
    used = {"actor": True, "ref": True, "critic": flags[ESTIMATOR] == "gae", "reward": not graded}
    return [model for model, is_used in used.items() if is_used]
