"""vLLM's processes below an engine's actor, which end when it does.

vLLM runs its core, and the workers below that, in processes of their own. Those of an actor that is killed would live
on, with the GPU's memory. `hooks.ENGINE_CORE` and `hooks.ENGINE_WORKER` put the functions here in place of their main
functions; multiprocessing finds them by name in the new process.
"""

import ctypes
import multiprocessing
import os
import signal

from openrlhf_shear.fork import hooks

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def install() -> None:
    """For the processes that this one will start."""
    _put(hooks.ENGINE_CORE, run_engine_core)


def run_engine_core(*args, **kwargs) -> None:
    """`EngineCoreProc.run_engine_core`, which does not outlive its parent."""
    die_with_parent()
    _put(hooks.ENGINE_WORKER, worker_main)
    _upstream(hooks.ENGINE_CORE)(*args, **kwargs)


def worker_main(*args, **kwargs) -> None:
    """`WorkerProc.worker_main`, likewise."""
    die_with_parent()
    _upstream(hooks.ENGINE_WORKER)(*args, **kwargs)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that ends (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it had ended before
        os._exit(1)


def _put(patch: hooks.Patch, function) -> None:
    if patch.get() is not function:
        function.__wrapped__ = patch.get()
        patch.put(function)


def _upstream(patch: hooks.Patch):
    """What stood there before; in a process that was not forked nothing has been put there."""
    there = patch.get()
    return getattr(there, "__wrapped__", there) if there in (run_engine_core, worker_main) else there
