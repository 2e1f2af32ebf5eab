"""vLLM's core below an engine's actor, which ends when that does.

vLLM runs its core in a process of its own. That of an actor that is killed would live on, with the GPU's memory.
`hooks.ENGINE_CORE` puts the function here in place of its main function; multiprocessing finds it by name in the new
process. Workers are in the core's process or, of a tensor-parallel engine, Ray actors, which end with their owner.
"""

import ctypes
import multiprocessing
import os
import signal

from openrlhf_shear.fork import hooks

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def install() -> None:
    """For the processes that this one will start."""
    if hooks.ENGINE_CORE.get() is not run_engine_core:
        run_engine_core.__wrapped__ = hooks.ENGINE_CORE.get()
        hooks.ENGINE_CORE.put(run_engine_core)


def run_engine_core(*args, **kwargs) -> None:
    """`EngineCoreProc.run_engine_core`, which does not outlive its parent."""
    die_with_parent()
    from openrlhf_shear.fork.loopback import keep_stores_there
    from openrlhf_shear.kernels.bfloat16 import multiply_in_float32  # not above: others of this file need no torch

    keep_stores_there()
    multiply_in_float32()  # what is on a CPU; Ray's setup hook has not been here
    there = hooks.ENGINE_CORE.get()  # in a process that was not forked, upstream's
    getattr(there, "__wrapped__", there)(*args, **kwargs)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that ends (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it had ended before
        os._exit(1)
