"""Patch that keeps torch's stores on loopback when a job has one node, because they require no token."""

import socket

from openrlhf_shear.train import hooks

LOOPBACK, INTERFACE = "127.0.0.1", "lo"


def keep_stores_there() -> None:
    """Make torch's stores at 127.0.0.1 listen there alone, in this process; stores for several nodes do not change."""
    upstream = getattr(hooks.STORE.get(), "__wrapped__", hooks.STORE.get())

    def create(hostname, port, rank, world_size, timeout, use_libuv=True):
        from torch.distributed import TCPStore

        if rank != 0 or hostname != LOOPBACK or not use_libuv:
            return upstream(hostname, port, rank, world_size, timeout, use_libuv)
        try:
            listening = socket.create_server((hostname, port))
        except OSError:  # port taken: upstream shares a store of this process, and reports another process
            return upstream(hostname, port, rank, world_size, timeout, use_libuv)
        options = {"is_master": True, "timeout": timeout, "multi_tenant": True, "use_libuv": True}
        return TCPStore(hostname, port, world_size, master_listen_fd=listening.detach(), **options)

    create.__wrapped__ = upstream
    hooks.STORE.put(create)
