"""Set-up of a run's processes: torch's stores at held ports, output that a full disk may lose, the end of engines.

The stores require no token, so those of a job on one node listen on loopback alone. Ray writes a worker's output to
files in its temporary folder; if that disk is full, printing would end the run. vLLM's core, a separate process, would
outlive a killed actor and keep the GPU's memory. Its workers run in the core, or are Ray actors, which end with it.
"""

import ctypes
import errno
import multiprocessing
import os
import signal
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import TextIO

from openrlhf_shear.preflight.resources import ray_folder
from openrlhf_shear.train import hooks

LOOPBACK, INTERFACE = "127.0.0.1", "lo"
WORKER_SETUP_HOOK = "openrlhf_shear.train.nodes.worker.set_up"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
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


class Lossy:
    """Output stream that drops what a full disk refuses."""

    dropped, warned = False, False  # in this process, by any such stream; whether `lost_output` has said so

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def _drop(self, error: OSError) -> None:
        if error.errno not in _FULL:
            raise error
        Lossy.dropped = True


def set_up() -> None:
    """Prepare a worker on a machine with GPUs."""
    keep_stores_there()
    allow_lost_output()


def allow_lost_output() -> None:
    """Drop what a full disk refuses of this process's output, until the process ends."""
    redirect_stdout(Lossy(sys.stdout)).__enter__()
    redirect_stderr(Lossy(sys.stderr)).__enter__()


def lost_output() -> str:
    """Return a warning if this process has dropped output and has not said so yet; else ""."""
    lost, Lossy.warned = Lossy.dropped and not Lossy.warned, Lossy.warned or Lossy.dropped
    warning = f"the disk of Ray's temporary folder is full ({', '.join(ray_folder())}): its processes' output is lost"
    return f"{warning}; make room there" if lost else ""


def bind_engine_core() -> None:
    """Let the core processes that this process will start end with it: multiprocessing finds their main by name."""
    if hooks.ENGINE_CORE.get() is not run_engine_core:
        run_engine_core.__wrapped__ = hooks.ENGINE_CORE.get()
        hooks.ENGINE_CORE.put(run_engine_core)


def run_engine_core(*args, **kwargs) -> None:
    """Run `EngineCoreProc.run_engine_core`, and die with the parent process."""
    die_with_parent()
    from openrlhf_shear.kernels.bfloat16 import multiply_in_float32  # late: other functions of this file need no torch

    keep_stores_there()
    multiply_in_float32()  # for weights on a CPU; Ray's setup hook does not run here
    there = hooks.ENGINE_CORE.get()  # upstream's, unless this process was forked
    getattr(there, "__wrapped__", there)(*args, **kwargs)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, for whatever reason (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it had already ended
        os._exit(1)
