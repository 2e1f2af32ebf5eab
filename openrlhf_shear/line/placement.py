"""Default placement of models, by the GPUs of the machine or cluster; OpenRLHF's default is 8 GPUs for each model."""

from collections.abc import Collection

from openrlhf_shear.line.values import ESTIMATOR, Values, graded

_SHARING = ("train.colocate_all", "train.colocate_actor_ref", "train.colocate_critic_reward", "train.async_enable")
_SLEEP = ("vllm.enable_sleep", "ds.enable_sleep")
_WORLD = ("num_nodes", "num_gpus_per_node")


def is_open(values: Values, given: Collection[str]) -> bool:
    """Return whether the command line leaves some placement to `defaults`."""
    return any(f"{model}.num_gpus_per_node" not in given for model in _models(values))


def flags(values: Values) -> set[str]:
    """Return the flags of the nodes and GPUs of all models that a run uses."""
    return {f"{model}.{name}" for model in _models(values) for name in _WORLD}


def defaults(values: Values, given: Collection[str], nodes: int, gpus: int, on_cpu: bool) -> dict[str, object]:
    """Return values for the placement flags that the command line does not set.

    Without any placement flag, all models share all GPUs and take turns. Otherwise other models get the actor's layout.

    Args:
        given: the flags of the command line, dotted names.
        nodes: nodes with GPUs.
        gpus: GPUs of each node; logical GPUs on a CPU machine.
        on_cpu: there are no GPUs, so nothing can sleep.
    """
    models, chosen = _models(values), {}
    placed = {*_SHARING, "vllm.num_engines", *(f"{model}.{name}" for model in models for name in _WORLD)}
    if not placed.intersection(given):
        engine = values["vllm.tensor_parallel_size"]
        chosen = {"train.colocate_all": True, "vllm.num_engines": max(1, nodes * gpus // engine)}
        chosen |= dict.fromkeys(() if on_cpu else _SLEEP, True)
        chosen |= {"actor.num_nodes": nodes} if nodes > 1 else {}
    if "actor.num_gpus_per_node" not in given:
        chosen["actor.num_gpus_per_node"] = gpus
    of_actor = {name: chosen.get(f"actor.{name}", values[f"actor.{name}"]) for name in _WORLD}
    chosen |= {f"{model}.{name}": of_actor[name] for model in models[1:] for name in _WORLD}
    return {flag: value for flag, value in chosen.items() if flag not in given and values[flag] != value}


def _models(values: Values) -> list[str]:
    used = {"actor": True, "ref": True, "critic": values[ESTIMATOR] == "gae", "reward": not graded(values)}
    return [model for model, is_used in used.items() if is_used]
