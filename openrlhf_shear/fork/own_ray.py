"""The Ray that a run starts: on loopback, and for who has the run's token. docs/security.md lists the ports."""

import atexit
import os
import secrets
import socket
import tempfile
from pathlib import Path

import ray

from openrlhf_shear.fork import hooks
from openrlhf_shear.fork.loopback import INTERFACE, LOOPBACK
from openrlhf_shear.fork.outcome import RefusedError
from openrlhf_shear.fork.story import say

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_TOKEN_PREFIX = "shear-ray-token-"
SETTINGS = {  # defaults: what the user has set stays
    # How long agents look for a head that is gone; by default they outlive a driver that was killed by a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    # How long a raylet waits for its agent, before it ends and the driver without a word; by default 30 s, which a cold
    # start on a busy machine can take.
    "RAY_agent_register_timeout_ms": "600000",
    # Ray makes this machine's address on the network of 127.0.0.1, also in its agent, which ends the run when it cannot
    # connect there to hand on a job. With this, as by default on a Mac, it leaves 127.0.0.1 alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "VLLM_HOST_IP": LOOPBACK,
    "GLOO_SOCKET_IFNAME": INTERFACE,
    "NCCL_SOCKET_IFNAME": INTERFACE,
}


def start(runtime_env: dict, **options) -> None:
    """Start and join a Ray of one node, by `ray.init` with these and more options.

    Raises:
        RefusedError: RAY_AUTH_TOKEN_PATH names a file that cannot be read.
    """
    for name, value in SETTINGS.items():
        if value != INTERFACE or any(value == interface for _, interface in socket.if_nameindex()):
            os.environ.setdefault(name, value)
    _ask_for_a_token()
    with hooks.NODE_ADDRESS.held(lambda host: host):
        ray.init(address="local", _node_ip_address=LOOPBACK, runtime_env=runtime_env, **options)


def end() -> None:
    """Leave Ray, which ends one that was started here, and remove its token."""
    ray.shutdown()
    path = Path(os.environ.get(TOKEN_PATH, ""))
    if path.name.startswith(f"{_TOKEN_PREFIX}{os.getpid()}-"):
        path.unlink(missing_ok=True)


def _ask_for_a_token() -> None:
    """Set Ray's variables before it starts, unless they are set: what it starts inherits them."""
    os.environ.setdefault(MODE, "token")
    if not is_token_asked():
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


def is_token_asked() -> bool:
    """Whether the environment has it that a Ray asks for a token."""
    return os.environ.get(MODE, "").lower() == "token"


def reread() -> None:
    """Have Ray read the variables of its token again: it reads them when it is imported."""
    from ray._raylet import AuthenticationTokenLoader, Config

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
