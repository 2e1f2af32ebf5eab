"""Machine checks, run on every node of a Ray cluster."""

from collections.abc import Iterable
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from openrlhf_shear.doctor.node import check_node, differences
from openrlhf_shear.doctor.result import Result, fail, ok, warn
from openrlhf_shear.train.nodes.cluster import cluster_address, enter

# Without this a task that requests no GPU sees none, and could not check them.
_SEES_GPUS = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}
_NAME = "Ray cluster"
_HEAD = "node:__internal_head__"  # the resource by which Ray marks the head node
_START = "start one (ray start --head), or set RAY_ADDRESS to the address that ray start printed"


def check_cluster(path: Path, seconds: float) -> tuple[dict[str, list[Result]], list[Result]]:
    """Check a Ray cluster; return the results of `check_node` by node name, and the results of the whole cluster.

    Args:
        path: the folder to check on every node.
        seconds: how long to wait for the nodes.
    """
    address, silence = cluster_address()
    if problem := unreachable(address, silence):
        return {}, [problem]
    try:
        enter(address, log_to_driver=False, logging_level="ERROR", runtime_env=_SEES_GPUS)
    except (ConnectionError, RuntimeError, ValueError) as error:  # RuntimeError: a token, other versions of Ray, Python
        return {}, [fail(_NAME, f"{address}: {_in_a_line(error)}", _START)]
    try:
        alive, dead = (_named(node for node in ray.nodes() if node["Alive"] is here) for here in (True, False))
        nodes = _check_nodes(alive, path, seconds)
    finally:
        ray.shutdown()
    gpus = sum(node["Resources"].get("GPU", 0) for node in alive.values())
    overall = [ok(_NAME, f"{address}: {len(alive)} nodes, {gpus:g} GPUs")]
    overall += [warn("a dead node", name, "run ray start there again if it belongs to the cluster") for name in dead]
    return nodes, overall + differences(nodes)


def unreachable(address: str, silence: str) -> Result | None:
    """Return a failure if `cluster_address` found no cluster, or a silent one; else None."""
    if not address:
        return fail(_NAME, "none was started on this machine, and RAY_ADDRESS is not set", _START)
    return fail(_NAME, f"nothing answers at {address}: {silence}", _START) if silence else None


def _named(nodes: Iterable[dict]) -> dict[str, dict]:
    """Name nodes for people, the head first: on a tie, `differences` takes the head's value as the norm."""
    head_first = sorted(nodes, key=lambda node: _HEAD not in node["Resources"])
    return {f"{node['NodeManagerHostname']} ({node['NodeID'][:6]})": node for node in head_first}


def _check_nodes(nodes: dict[str, dict], path: Path, seconds: float) -> dict[str, list[Result]]:
    """Run a task on each node; a failed or late task becomes a failed result."""
    task = ray.remote(num_cpus=0, max_retries=0)(_check_here)
    tasks = {}
    for name, node in nodes.items():
        there = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        tasks[name] = there.remote(str(path), node["Resources"].get("GPU", 0))
    done, _ = ray.wait(list(tasks.values()), num_returns=len(tasks), timeout=seconds)
    remedy = "install this package and Ray there as here, in the same folder, and read Ray's logs"
    slow = "check that a process can start there, or raise --seconds"
    late = fail("node", f"no answer within {seconds:g} seconds", slow)
    results = {}
    for name, reference in tasks.items():
        try:
            results[name] = ray.get(reference) if reference in done else [late]
        except ray.exceptions.RayError as error:
            results[name] = [fail("node", _in_a_line(error), remedy)]
    return results


def _check_here(path: str, gpus: float) -> list[Result]:
    return list(check_node(Path(path), announced=gpus))


def _in_a_line(error: BaseException) -> str:
    """Return the last line of Ray's message, after its tracebacks."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1][:300]
