"""Ranks that train together over gloo, without Ray: each is forked from one process that imports the training stack.

Importing it takes most of a small job's time.
"""

import contextlib
import importlib
import multiprocessing
import os
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import torch
from torch.multiprocessing.spawn import ProcessException, start_processes

IMPORTED = (  # in this order: the first puts stand-ins in place of packages that the others import
    *("gradient_worker", "openrlhf.models", "openrlhf.utils.deepspeed", "openrlhf.trainer.ray.ppo_actor"),
    *("openrlhf.trainer.ray.ppo_critic", "transformers.models.qwen2.modeling_qwen2"),
)
SECONDS = 600  # timeout of a job
# of what is imported; torchvision is for the processor of a vision model (scripts/setup_tests.sh)
_PATHS = (Path(__file__).parent, Path(__file__).parents[1], Path(sys.prefix) / "torchvision")


def run_ranks(module: str, ranks: int, *given: object) -> None:
    """Run `module.main(rank, ranks, *given)` in a process for each rank, on one thread each.

    Raises:
        RuntimeError: a rank failed; the message has its traceback.
        TimeoutError: they have not ended after `SECONDS`.
    """
    with _environment():
        multiprocessing.set_forkserver_preload([*IMPORTED])
        forkserver.ensure_running()
    end = time.monotonic() + SECONDS * float(os.environ.get("OPENRLHF_SHEAR_TEST_PATIENCE", "1"))
    started = start_processes(_of_rank, (module, ranks, given), ranks, join=False, start_method="forkserver")
    try:
        while not started.join(timeout=1.0):
            if time.monotonic() > end:
                raise TimeoutError(f"{ranks} ranks of {module} have not ended")
    except ProcessException as error:
        raise RuntimeError(f"{module}: {error}") from error
    finally:
        for process in started.processes:
            process.kill()


def _of_rank(rank: int, module: str, ranks: int, given: tuple) -> None:
    torch.set_num_threads(1)
    importlib.import_module(module).main(rank, ranks, *given)


@contextlib.contextmanager
def _environment():
    """Set what the importing process reads as it starts."""
    before = dict(os.environ)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, _PATHS), *filter(None, [before.get("PYTHONPATH")])])
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
