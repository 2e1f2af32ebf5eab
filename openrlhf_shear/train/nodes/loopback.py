"""torch's stores of a run: held ports, and loopback alone when a job has one node, because they require no token."""

import socket
from contextlib import suppress

from openrlhf_shear.train import hooks

LOOPBACK, INTERFACE = "127.0.0.1", "lo"
_held: dict[int, socket.socket] = {}  # by port: listening sockets of stores that this process will open


class HoldsItsPort:
    """Mixin of OpenRLHF's actors: the port of the ranks' store stays this process's own until the store is there.

    Upstream closes the port again, and opens it when all actors are placed. Until then any process can take it.
    """

    @staticmethod
    def _get_free_port() -> int:
        import ray

        if ray._private.services.get_node_ip_address() == LOOPBACK:
            listening = socket.create_server((LOOPBACK, 0))
        elif socket.has_dualstack_ipv6():
            listening = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            listening = socket.create_server(("", 0))
        port = listening.getsockname()[1]
        _held[port] = listening
        return port


def keep_stores_there() -> None:
    """Make this process's torch stores use their held port; at 127.0.0.1 they listen there alone."""
    upstream = getattr(hooks.STORE.get(), "__wrapped__", hooks.STORE.get())

    def create(hostname, port, rank, world_size, timeout, use_libuv=True):
        from torch.distributed import TCPStore

        listening = _held.pop(port, None) if rank == 0 else None
        if listening is None and rank == 0 and hostname == LOOPBACK and use_libuv:
            with suppress(OSError):  # port taken: upstream shares a store of this process, and reports another process
                listening = socket.create_server((hostname, port))
        if listening is None:
            return upstream(hostname, port, rank, world_size, timeout, use_libuv)
        options = {"is_master": True, "timeout": timeout, "multi_tenant": True, "use_libuv": True}
        return TCPStore(hostname, port, world_size, master_listen_fd=listening.detach(), **options)

    create.__wrapped__ = upstream
    hooks.STORE.put(create)
