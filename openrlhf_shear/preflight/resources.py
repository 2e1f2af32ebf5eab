"""Checks of this machine: room on its disks and in Ray's temporary folder, processes, address space, GPU packages.

Checks of what would run out are left out if the run joins a Ray cluster (`RAY_ADDRESS`).
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf
from pathlib import Path

from openrlhf_shear.config.refusal import Finding, Note, Refusal, refusal
from openrlhf_shear.doctor import gpu, toolkit
from openrlhf_shear.doctor.machine import ADDRESSES, PROCESSES, TEMPORARY
from openrlhf_shear.line.run import Run
from openrlhf_shear.memory.model_shape import checkpoint_bytes, model_bytes
from openrlhf_shear.preflight.models import Models
from openrlhf_shear.preflight.outputs import nearest, weights_in
from openrlhf_shear.preflight.sockets import ray_folder, socket_problem
from openrlhf_shear.rewards.limits import address_limit, process_limit, tasks_of_user

_UNLIMITED = "unlimited before the run"


def own_ray() -> bool:
    """Return whether the run starts a private Ray on this machine."""
    return os.environ.get("RAY_ADDRESS", "local") in ("", "local")


def limits(run: Run) -> Iterator[Finding]:
    """Refuse limits of the shell under which Ray fails without naming them."""
    if not own_ray():
        return
    limit = address_limit()
    if limit is not None and limit < ADDRESSES:
        problem = f"must leave a process {ADDRESSES >> 30} GiB, as Ray's actors reserve far more than they use"
        yield Refusal("ulimit -v", problem, f"{limit >> 10} KiB", f"ulimit -v {_UNLIMITED}")
    most, (_, needed) = process_limit(), PROCESSES
    if most is not None and most - (running := tasks_of_user()) < needed:
        problem = f"must leave {needed} processes and threads to Ray and vLLM; {running} of this user run already"
        yield Refusal("ulimit -u", problem, str(most), f"ulimit -u {_UNLIMITED}")


def temporary_folder(run: Run) -> Iterator[Finding]:
    """Refuse a folder for Ray's sessions that is full, or whose path is too long for Ray's and vLLM's sockets."""
    if not own_ray():
        return
    problem, (variable, folder) = socket_problem(), ray_folder()
    if problem:
        yield problem
    if (free := _free(nearest(Path(folder)))) < TEMPORARY:
        problem = f"names the folder of Ray's sessions, which needs {TEMPORARY / 1e6:.0f} MB and has {free / 1e6:.1f}"
        yield Refusal(variable, problem, folder, "make room there, or e.g. RAY_TMPDIR=/var/tmp on another disk")


@dataclass(frozen=True)
class _Need:
    """Bytes that a run writes below a flag's folder."""

    flag: str
    what: str
    folder: Path  # an existing folder on the same disk
    size: int


def disks(run: Run, files: Models) -> Iterator[Finding]:
    """Refuse disks without room for the model and a checkpoint; tell if --ckpt.max_num asks for more than there is."""
    if not own_ray() or run.device_memory:  # a plan for a machine elsewhere
        return
    if any(model.shape is None for model in files.values()):
        return
    parameters = {name: model.shape.parameters for name, model in files.items()}
    checkpoint, model = _checkpoint(run, parameters), model_bytes(parameters["actor"])
    folders = Path(run.ckpt.path, "_actor").glob("*global_step*")  # best_global_stepN too
    there = sum(not path.name.endswith("_hf") for path in folders)
    path, output = (nearest(Path(folder)) for folder in (run.ckpt.path, run.ckpt.output_dir))
    needs = [
        _Need("ckpt.path", "a checkpoint", path, checkpoint * (not there)),
        _Need("ckpt.output_dir", "the model", output, max(0, model - weights_in(run))),
    ]
    refused = False
    for disk in {need.folder.stat().st_dev for need in needs}:
        here = [need for need in needs if need.folder.stat().st_dev == disk and need.size]
        needed = sum(need.size for need in here)
        if here and (free := _free(here[0].folder)) < needed:
            refused = True
            yield _no_room(run, here, needed, free)
    if checkpoint and not refused:
        yield from _fewer_checkpoints(run, checkpoint, there, sum(need.size for need in needs[1:]))


def _checkpoint(run: Run, parameters: dict[str, int]) -> int:
    """Return the bytes of a checkpoint; with LoRA, whose adapters are small, those of the frozen weights."""
    if run.ckpt.save_steps <= 0:
        return 0
    actor, critic = parameters["actor"], parameters["critic"] if run.estimator == "gae" else 0
    size = model_bytes(actor) * run.ckpt.save_hf
    if not run.ckpt.disable_ds:
        frozen = bool(run.ds.lora.rank)
        size += checkpoint_bytes(actor, actor * frozen, run.train.enable_ema)
        size += checkpoint_bytes(critic, critic * frozen)
    return size


def _no_room(run: Run, needs: list[_Need], needed: int, free: float) -> Refusal:
    first, *others = reversed(needs)
    also = "".join(f", and {need.size / 1e9:.3g} for {need.what} (--{need.flag})" for need in others)
    problem = f"needs {first.size / 1e9:.3g} GB for {first.what}{also}; its disk has {free / 1e9:.3g} GB left"
    return Refusal(first.flag, problem, repr(run.flags[first.flag]), "a disk with room, or make room")


def _fewer_checkpoints(run: Run, size: int, there: int, model: int) -> Iterator[Note]:
    """Tell if the disk has room for fewer checkpoints than the run keeps, the best and the newest included."""
    path, output = (nearest(Path(run.flags[flag])) for flag in ("ckpt.path", "ckpt.output_dir"))
    free = _free(path) - model * (path.stat().st_dev == output.stat().st_dev)
    most = max(1, int(min(run.ckpt.max_num, run.ckpt.max_mem * 2**30 / size)))
    room = there + max(free, 0) // size
    evaluates = (run.eval.dataset or run.eval.suite) and run.ckpt.best_metric_key != "none"
    best = bool(evaluates and not run.ckpt.best_weights_only and not run.ckpt.disable_ds)
    if room < most + 1 + best:
        message = f"the disk of --ckpt.path has room for checkpoints of {size / 1e9:.3g} GB: {room}"
        needs = f"--ckpt.max_num {run.ckpt.max_num} needs {most + 1 + best}, as a run deletes the oldest after a save"
        needs += " and keeps that of the best evaluation" * best
        yield Note(f"{message}; {needs}")


def _free(folder: Path) -> float:
    """Return the free bytes of a folder's disk; infinity if the file system does not tell."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else inf


def stack(run: Run) -> Iterator[Finding]:
    """Check what flags need of a GPU machine, if the run will use GPUs: the CPU profile drops these flags."""
    gpus_here = bool(gpu.ask_driver()[2])
    if run.device == "cuda" or (run.device == "auto" and gpus_here):
        yield from _allocator(run)
        yield from _liger(run)
        if gpus_here:
            yield from _offload(run)


def _allocator(run: Run) -> Iterator[Refusal]:
    """Refuse expandable segments where weights go to vLLM through CUDA's memory sharing between processes.

    Torch shares such memory by pidfd_getfd. The kernel forbids that call between processes that may not trace each
    other: with Ubuntu's default (kernel.yama.ptrace_scope 1), and in containers without SYS_PTRACE.
    """
    shares = run.train.colocate_all and not run.train.async_enable and run.vllm.sync_backend == "nccl"
    if shares and (variable := gpu.expandable()):
        problem = "means segments out of which --train.colocate_all cannot send weights to vLLM"
        why = "(pidfd_getfd: Operation not permitted)"
        yield Refusal(variable, f"{problem} {why}", os.environ[variable], f"unset {variable}")


def _liger(run: Run) -> Iterator[Refusal]:
    if run.ds.use_liger_kernel and find_spec("liger_kernel") is None:
        problem = "needs the package liger_kernel, which is not installed"
        yield refusal("ds.use_liger_kernel", problem, True, "pip install liger-kernel on every node, or no such flag")


def _offload(run: Run) -> Iterator[Refusal]:
    """Refuse CPU Adam where DeepSpeed can neither load nor compile it."""
    gpus = gpu.probe() if run.ds.adam_offload else gpu.Gpus()
    if not gpus.torch_cuda:  # without the flag, or with torch's CPU build, which the doctor reports
        return
    built, found = toolkit.find_built(), toolkit.find_toolkit(os.environ)
    if problem := toolkit.compile_problem(toolkit.CPU_ADAM, gpus, found, built):
        remedy = "scripts/install_cluster.sh, which builds it, or that CUDA toolkit, or no such flag"
        yield refusal("ds.adam_offload", f"cannot work: {problem}", True, remedy)
