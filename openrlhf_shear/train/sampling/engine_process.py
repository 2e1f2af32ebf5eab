"""Main function of vLLM's core process, which makes the core end with its engine's actor.

vLLM runs its core in a separate process. When the actor is killed, the core would live on and keep the GPU's memory.
`hooks.ENGINE_CORE` replaces the core's main function by the function here; multiprocessing finds it by name in the new
process. vLLM's workers run in the core's process. With tensor parallelism they are Ray actors, which end with their
owner.
"""

import ctypes
import multiprocessing
import os
import signal

from openrlhf_shear.train import hooks

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def install() -> None:
    """Patch the main function for the core processes that this process will start."""
    if hooks.ENGINE_CORE.get() is not run_engine_core:
        run_engine_core.__wrapped__ = hooks.ENGINE_CORE.get()
        hooks.ENGINE_CORE.put(run_engine_core)


def run_engine_core(*args, **kwargs) -> None:
    """Run `EngineCoreProc.run_engine_core`, and die with the parent process."""
    die_with_parent()
    from openrlhf_shear.kernels.bfloat16 import multiply_in_float32  # late: other functions of this file need no torch
    from openrlhf_shear.train.nodes.worker import keep_stores_there

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
