"""Private Ray of a run: listens on loopback, and requires the run's token. docs/security.md lists the ports."""

import atexit
import os
import secrets
import socket
import tempfile
from pathlib import Path

import ray

from openrlhf_shear.train import hooks
from openrlhf_shear.train.nodes.worker import INTERFACE, LOOPBACK
from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.screen.story import say

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_TRIES = 3
_TOKEN_PREFIX = "shear-ray-token-"
SETTINGS = {  # defaults: the user's own settings win
    # How long agents search for a missing head; by default they outlive a killed driver by a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    # How long a raylet waits for its agents and workers. The defaults are 30 and 60 s, which a cold start on a busy
    # machine exceeds: then raylet and driver exit silently, or workers start again and again.
    "RAY_agent_register_timeout_ms": "3600000",
    "RAY_worker_register_timeout_seconds": "3600",
    # How often in a row the only node may not answer in time. It ends with this process anyway.
    "RAY_health_check_failure_threshold": "1000",
    # Ray gives its workers niceness 15, so on a busy machine ranks and engines would wait for everything else.
    "RAY_worker_niceness": "0",
    # Ray turns 127.0.0.1 into this machine's network address, also in its agent. The agent ends the run if it cannot
    # connect there to submit a job. With this setting, the default on a Mac, Ray keeps 127.0.0.1.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "VLLM_HOST_IP": LOOPBACK,
    "GLOO_SOCKET_IFNAME": INTERFACE,
    "NCCL_SOCKET_IFNAME": INTERFACE,
}


def start(runtime_env: dict, **options) -> None:
    """Start and join a Ray of a single node, without a dashboard; `options` go to `ray.init`.

    Raises:
        RefusedError: RAY_AUTH_TOKEN_PATH names a file that cannot be read.
        NotStartedError: a process of Ray ended at every try.
    """
    from openrlhf_shear.train.nodes import patient_node  # late: what only ends Ray needs no part of its inside

    for name, value in SETTINGS.items():
        if value != INTERFACE or any(value == interface for _, interface in socket.if_nameindex()):
            os.environ.setdefault(name, value)
    _require_a_token()
    options |= {"_node_ip_address": LOOPBACK, "include_dashboard": False, "runtime_env": runtime_env}
    with hooks.NODE_ADDRESS.held(lambda host: host), hooks.NODE.held(patient_node.PatientNode):
        for tries_left in reversed(range(_TRIES)):
            try:
                ray.init(address="local", **options)
                return
            except patient_node.NotStartedError as error:
                ray.shutdown()
                if not tries_left:
                    raise
                say(f"{error}; starting Ray again")


def end() -> None:
    """Leave Ray, stop it if this process started it, and remove its token."""
    ray.shutdown()
    path = Path(os.environ.get(TOKEN_PATH, ""))
    if path.name.startswith(f"{_TOKEN_PREFIX}{os.getpid()}-"):
        path.unlink(missing_ok=True)


def _require_a_token() -> None:
    """Set Ray's token variables before it starts, unless they are set; Ray's processes inherit them."""
    os.environ.setdefault(MODE, "token")
    if not requires_token():
        say(f"{MODE}={os.environ[MODE]}: who reaches a port of this Ray runs code as you")
    elif os.environ.get(TOKEN):
        pass
    elif path := os.environ.get(TOKEN_PATH):
        try:
            Path(path).read_text()
        except OSError as error:
            raise RefusedError(
                f"RAY_AUTH_TOKEN_PATH cannot be read: {error}; unset it for a token of this run"
            ) from None
    else:
        descriptor, path = tempfile.mkstemp(prefix=f"{_TOKEN_PREFIX}{os.getpid()}-")  # its mode is 0600
        with open(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        os.environ.update({TOKEN_PATH: path})
        atexit.register(end)
    reread()


def requires_token() -> bool:
    """Return whether the environment makes Ray require a token."""
    return os.environ.get(MODE, "").lower() == "token"


def reread() -> None:
    """Make Ray read its token variables again, because it reads them at import."""
    from ray._raylet import AuthenticationTokenLoader, Config

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
