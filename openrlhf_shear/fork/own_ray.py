"""A Ray of a run's own: on one machine, reached over loopback alone, by who has the run's token."""

import atexit
import contextlib
import os
import secrets
import tempfile
from functools import cache

import ray
from ray._raylet import AuthenticationMode, AuthenticationTokenLoader, Config, get_authentication_mode

from openrlhf_shear.fork import hooks
from openrlhf_shear.fork.outcome import RefusedError
from openrlhf_shear.fork.story import say

MODE, PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"
_SETTINGS = {
    # How long agents look for a head that is gone; by default they outlive a driver that was killed by a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    # How long a raylet waits for its agent, before it ends and the driver without a word; by default 30 s, which a cold
    # start on a busy machine can take.
    "RAY_agent_register_timeout_ms": "600000",
    # The node's address is 127.0.0.1, so nothing listens elsewhere. (Its name is of the systems where that is default.)
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


def prepare() -> None:
    """Set the environment, which every process of a Ray that `ray.init` starts inherits, before that starts it.

    Variables that the user has set stay. With `RAY_AUTH_MODE=disabled` there is no token.

    Raises:
        RefusedError: this Ray does not take the token, so that its ports would run anybody's code.
    """
    os.environ.update(_SETTINGS | {name: os.environ[name] for name in _SETTINGS if name in os.environ})
    hooks.LOOPBACK.put(os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] != "0")
    if MODE not in os.environ:
        os.environ[MODE] = "token"
        os.environ.pop("RAY_AUTH_TOKEN", None)
        os.environ[PATH] = _new_token()
    # Ray reads both when it is imported.
    AuthenticationTokenLoader.instance().reset_cache()
    Config.initialize("")
    if os.environ[MODE] == "token" and not _is_locked():
        raise RefusedError(f"Ray {ray.__version__} takes no token: its ports would run anybody's code")


@cache
def tell_if_open(address: str) -> None:
    """Say so, once, where a Ray that was started or joined asks nobody for a token."""
    if not _is_locked():
        who = "every user of this machine" if address == "local" else "whoever reaches it"
        say(f"Ray asks for no token: {who} can run code as you ({MODE}=token when Ray starts; docs/security.md)")


def _is_locked() -> bool:
    return get_authentication_mode() == AuthenticationMode.TOKEN


def _new_token() -> str:
    """The path of a file with a new token, which only this user can read, until this process ends."""
    descriptor, path = tempfile.mkstemp(prefix="ray-token-")
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    atexit.register(_end, path, os.getpid())
    return path


def _end(path: str, owner: int) -> None:
    if os.getpid() == owner:  # not a fork
        ray.shutdown()  # its processes read the file when they start
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
