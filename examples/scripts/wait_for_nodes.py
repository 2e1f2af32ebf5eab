"""Wait, on a node of a Ray cluster, for all nodes: `wait_for_nodes.py ADDRESS NODES [SECONDS [DASHBOARD]]`."""

import socket
import sys
import time

import ray
from ray.job_submission import JobSubmissionClient


def main(address: str, wanted: str, seconds: str = "300", dashboard: str = "") -> None:
    """Connect to the cluster at `address` ("host:port"), and return when `wanted` nodes are alive.

    If `dashboard` ("http://host:port") is given, it must accept jobs too.

    Raises:
        SystemExit: too few nodes are alive after `seconds` (the message names them), or the token is wrong.
    """
    end = time.monotonic() + float(seconds)
    while not _connected(address):
        if time.monotonic() > end:
            raise SystemExit(f"wait_for_nodes.py: no Ray head at {address} after {seconds} s; see its log")
        time.sleep(1)
    while len(alive := [node for node in ray.nodes() if node["Alive"]]) < int(wanted):
        if time.monotonic() > end:
            names = ", ".join(f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in alive)
            raise SystemExit(
                f"wait_for_nodes.py: {wanted} nodes must have joined {address} after {seconds} s: got {len(alive)}, "
                f"{names}; see the logs of the others"
            )
        time.sleep(1)
    while dashboard and (problem := _no_jobs(dashboard)):
        if time.monotonic() > end:
            raise SystemExit(f"wait_for_nodes.py: {dashboard} takes no jobs after {seconds} s: {problem}")
        time.sleep(1)
    print(f"{len(alive)} Ray nodes with {ray.cluster_resources().get('GPU', 0):g} GPUs", flush=True)


def _connected(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()  # ray.init would take half a minute to fail
        ray.init(address, log_to_driver=False, logging_level="ERROR")
    except ray.exceptions.AuthenticationError as error:
        raise SystemExit(f"wait_for_nodes.py: the Ray head at {address} asks for its token: {error.message}") from None
    except (OSError, RuntimeError, ValueError):
        return False  # the head is still starting: ray raises any of these, depending on its progress
    return True


def _no_jobs(dashboard: str) -> str:
    try:
        JobSubmissionClient(dashboard).list_jobs()
    except (OSError, RuntimeError) as error:  # RuntimeError: the dashboard answers, but its job agent does not
        return f"{type(error).__name__}: {str(error).strip()[:300]}"
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
