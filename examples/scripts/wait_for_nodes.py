"""Wait until a Ray cluster has all of its nodes: `wait_for_nodes.py ADDRESS NODES [SECONDS]`, on one of them."""

import socket
import sys
import time

import ray


def main(address: str, wanted: str, seconds: str = "300") -> None:
    """Connects to the cluster at `address` ("host:port") and returns once `wanted` nodes are alive.

    Raises:
        SystemExit: they are not after `seconds`; the message names those that are.
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
    print(f"{len(alive)} Ray nodes with {ray.cluster_resources().get('GPU', 0):g} GPUs", flush=True)


def _connected(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()  # ray itself takes half a minute to give up
        ray.init(address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError):
        return False  # not there yet: ray raises any of these, by how far the head has come
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
