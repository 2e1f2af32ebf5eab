"""Torch's stores, where workers of a job meet and which ask for no token: on loopback where the job has one node."""

import socket

from openrlhf_shear.fork import hooks

LOOPBACK, INTERFACE = "127.0.0.1", "lo"
WORKER_SETUP_HOOK = "openrlhf_shear.fork.loopback.keep_stores_there"


def keep_stores_there() -> None:
    """Have torch's stores at 127.0.0.1 listen there alone, in this process; those of several nodes stay as they are."""
    upstream = getattr(hooks.STORE.get(), "__wrapped__", hooks.STORE.get())

    def create(hostname, port, rank, world_size, timeout, use_libuv=True):
        from torch.distributed import TCPStore

        if rank != 0 or hostname != LOOPBACK or not use_libuv:
            return upstream(hostname, port, rank, world_size, timeout, use_libuv)
        try:
            listening = socket.create_server((hostname, port))
        except OSError:  # taken: upstream shares a store of this process, and says it of another process
            return upstream(hostname, port, rank, world_size, timeout, use_libuv)
        options = {"is_master": True, "timeout": timeout, "multi_tenant": True, "use_libuv": True}
        return TCPStore(hostname, port, world_size, master_listen_fd=listening.detach(), **options)

    create.__wrapped__ = upstream
    hooks.STORE.put(create)
