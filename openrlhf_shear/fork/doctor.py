"""The checks of a machine on every node of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from openrlhf_shear.fork.ray_head import last_started, silence
from openrlhf_shear.preflight.doctor.node import check_node, differences
from openrlhf_shear.preflight.doctor.result import Result, fail, ok, warn

# A task without GPUs sees none otherwise, and could say nothing of them.
_SEES_GPUS = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}
_HEAD = "node:__internal_head__"  # the resource by which Ray marks it
_START = "start one (ray start --head), or set RAY_ADDRESS to the address that ray start printed"


def check_cluster(path: Path, deep: bool, seconds: float) -> tuple[dict[str, list[Result]], list[Result]]:
    """
    Args:
        path: where a run would write, on every node.
        deep: import what training stands on too.
        seconds: to wait for the nodes.

    Returns:
        The results of each node, by its name, and those of the cluster as a whole.
    """
    address, reached = cluster_address()
    if reached.status == "fail":
        return {}, [reached]
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env=_SEES_GPUS)
    except (ConnectionError, RuntimeError, ValueError) as error:  # RuntimeError: other versions of Ray or Python
        return {}, [fail(reached.name, f"{address}: {_in_a_line(error)}", _START)]
    try:
        alive, dead = (_named(node for node in ray.nodes() if node["Alive"] is here) for here in (True, False))
        nodes = _check_nodes(alive, path, deep, seconds)
    finally:
        ray.shutdown()
    gpus = sum(node["Resources"].get("GPU", 0) for node in alive.values())
    seen = f"{address}: {len(alive)} nodes, {gpus:g} GPUs"
    overall = [ok(reached.name, seen)]
    overall += [warn("a dead node", name, "ray start there again if it was meant to be in it") for name in dead]
    return nodes, overall + differences(nodes)


def cluster_address() -> tuple[str, Result]:
    """What to connect to, RAY_ADDRESS or the cluster last started on this machine; whether anything listens there."""
    name = "Ray cluster"
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "auto", "local"):
        address = last_started()
    if not address:
        return address, fail(name, "none was started on this machine, and RAY_ADDRESS is not set", _START)
    if problem := silence(address):
        return address, fail(name, f"nothing answers at {address}: {problem}", _START)
    return address, ok(name, address)


def _named(nodes: Iterable[dict]) -> dict[str, dict]:
    """By a name for a person, the head first: what half of the nodes differ in, they differ from it in."""
    head_first = sorted(nodes, key=lambda node: _HEAD not in node["Resources"])
    return {f"{node['NodeManagerHostname']} ({node['NodeID'][:6]})": node for node in head_first}


def _check_nodes(nodes: dict[str, dict], path: Path, deep: bool, seconds: float) -> dict[str, list[Result]]:
    """One task a node; one that fails or does not come back is a result too."""
    task = ray.remote(num_cpus=0, max_retries=0)(_check_here)
    tasks = {
        name: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            str(path), deep, node["Resources"].get("GPU", 0)
        )
        for name, node in nodes.items()
    }
    done, _ = ray.wait(list(tasks.values()), num_returns=len(tasks), timeout=seconds)
    results = {}
    for name, reference in tasks.items():
        if reference not in done:
            late = f"no answer within {seconds:g} seconds"
            results[name] = [fail("node", late, "look whether a process can start there, or give it more --seconds")]
            continue
        try:
            results[name] = ray.get(reference)
        except ray.exceptions.RayError as error:
            remedy = "install this package and Ray there as here, in the same folder, and look into Ray's logs"
            results[name] = [fail("node", _in_a_line(error), remedy)]
    return results


def _check_here(path: str, deep: bool, gpus: float) -> list[Result]:
    return list(check_node(Path(path), deep, announced=gpus))


def _in_a_line(error: BaseException) -> str:
    """The last line of what Ray says, behind its tracebacks."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1][:300]
