"""Checks of a run's output folders, and of the machine: room, processes, address space, GPU packages.

Output folders must be writable and hold no other run's checkpoints or model. Checks of what would run out are left out
if the run joins a Ray cluster (`RAY_ADDRESS`).
"""

import contextlib
import fcntl
import math
import os
import resource
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from openrlhf_shear.config.refusal import Finding, Note, Refusal
from openrlhf_shear.data.files import not_writable
from openrlhf_shear.doctor import gpu, toolkit
from openrlhf_shear.doctor.machine import ADDRESSES, PROCESSES, TEMPORARY
from openrlhf_shear.line.run import Run
from openrlhf_shear.memory.model_shape import checkpoint_bytes, model_bytes
from openrlhf_shear.preflight.models import Models
from openrlhf_shear.rewards.limits import address_limit, process_limit, tasks_of_user

LOCK = ".lock"  # in --ckpt.path, locked by the trainer while it lives
START = ".start"  # the same, locked by the process that the user started
LOCK_SECONDS = 10.0  # the last processes of a killed run may hold its lock for a while
_WEIGHTS = ("*.safetensors", "*.bin")
_UNLIMITED = "unlimited before the run"
LOOPBACK = "127.0.0.1"
FILE = 4 << 30  # bytes of the largest file
MOST = 107  # bytes that the system allows for the path of a Unix socket
_SESSION = "/ray/session_2026-01-31_23-59-59_999999_{pid}/sockets/plasma_store"  # Ray's longest, below its folder
_IPC = "/01234567-89ab-cdef-0123-456789abcdef"  # vLLM's


def run_folder(run: Run) -> Path:
    """Return the run's folder, which holds its checkpoints, its log and its `run.yaml`."""
    return Path(run.ckpt.path).parent


def own_ray() -> bool:
    """Return whether the run starts a private Ray on this machine."""
    return os.environ.get("RAY_ADDRESS", "local") in ("", "local")


def folders(run: Run) -> Iterator[Finding]:
    places = {flag: run.flags[flag] for flag in ("ckpt.path", "ckpt.output_dir", "logger.tensorboard_dir")}
    written = {flag: Path(folder) for flag, folder in places.items() if folder}
    problems = not_writable(*written.values(), run_folder(run) / "logs")
    for flag, problem in zip((*written, "ckpt.path"), problems, strict=True):
        if problem:
            yield run.refusal(flag, f"cannot be written to: {problem}", "another folder")
    if Path(run.ckpt.path).absolute() == Path(run.ckpt.output_dir).absolute():
        message = "--ckpt.path and --ckpt.output_dir are the same folder, so the model lies among checkpoints"
        yield Note(f"{message}; use e.g. RUN/ckpt and RUN/model")


def nearest(folder: Path) -> Path:
    """Return the folder, or the nearest folder above it that exists."""
    # Path.exists raises where a folder above cannot be searched; os.path.exists says no.
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))


def checkpoints(run: Run) -> Iterator[Finding]:
    """Refuse to write into the folders of another run: of one that still writes, or one that has finished."""
    tags = sorted(path.name for path in Path(run.ckpt.path, "_actor").glob("*global_step*"))
    if _is_busy(Path(run.ckpt.path), 0.0 if run.dry_run else LOCK_SECONDS):
        remedy = "another folder, or wait for that run, or stop it"
        yield run.refusal("ckpt.path", "is the folder of a run that still writes", remedy)
    elif tags and run.ckpt.save_steps > 0 and not run.ckpt.load_enable:
        remedy = "--ckpt.load_enable to resume that run, or another folder"
        yield run.refusal("ckpt.path", f"has checkpoints of another run ({', '.join(tags[:3])})", remedy)
    elif has_model(run) and not tags:
        problem = "has a model already, of a run without checkpoints, and this run would replace it"
        yield run.refusal("ckpt.output_dir", problem, "another folder, or move that model away")


def has_model(run: Run) -> bool:
    """Return whether --ckpt.output_dir has a model's configuration and weights."""
    folder = Path(run.ckpt.output_dir)
    return (folder / "config.json").is_file() and any(any(folder.glob(name)) for name in _WEIGHTS)


def weights_in(run: Run) -> int:
    """Return the bytes of the weights in --ckpt.output_dir, which a new model overwrites."""
    folder = Path(run.ckpt.output_dir)
    return sum(file.stat().st_size for name in _WEIGHTS for file in folder.glob(name))


def locked(file: TextIO, patience: float) -> bool:
    """Lock an open file until it is closed, and return whether that worked within `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.5)


def _is_busy(folder: Path, patience: float) -> bool:
    """Return whether a run holds the lock of its checkpoints' folder, still after `patience` seconds."""
    for name in (START, LOCK):
        # An error: there is none, or a file system without locks, of which the trainer tells.
        with contextlib.suppress(OSError), (folder / name).open("r+") as file:
            if not locked(file, patience):
                return True
    return False


def hold(folder: Path) -> TextIO | None:
    """Lock a run's --ckpt.path from before Ray starts, until the file is closed; None if another start has it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / START).open("w")
    try:
        return file if locked(file, 0.0) else None
    except OSError:  # a file system without locks, of which the trainer tells
        return file


def free_bytes(folder: Path) -> float:
    """Return the free bytes of a folder's disk; infinity if the file system does not tell."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else math.inf


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
        if here and (free := free_bytes(here[0].folder)) < needed:
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
    free = free_bytes(path) - model * (path.stat().st_dev == output.stat().st_dev)
    most = max(1, int(min(run.ckpt.max_num, run.ckpt.max_mem * 2**30 / size)))
    room = there + max(free, 0) // size
    evaluates = (run.eval.dataset or run.eval.suite) and run.ckpt.best_metric_key != "none"
    best = bool(evaluates and not run.ckpt.best_weights_only and not run.ckpt.disable_ds)
    if room < most + 1 + best:
        message = f"the disk of --ckpt.path has room for checkpoints of {size / 1e9:.3g} GB: {room}"
        needs = f"--ckpt.max_num {run.ckpt.max_num} needs {most + 1 + best}, as a run deletes the oldest after a save"
        needs += " and keeps that of the best evaluation" * best
        yield Note(f"{message}; {needs}")


def ray_folder() -> tuple[str, str]:
    """Return the variable that Ray's temporary folder is read from, and the folder."""
    variable = next((name for name in ("RAY_TMPDIR", "TMPDIR") if name in os.environ), "RAY_TMPDIR")
    return variable, os.environ.get(variable, "/tmp")


def socket_problem() -> Refusal | None:
    """Return a refusal that names the variable to set, if Ray or its vLLM engines could not make sockets here."""
    temporary = next((name for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)), "TMPDIR")
    vllm = os.environ.get("VLLM_RPC_BASE_PATH")
    session = _SESSION.format(pid=os.getpid())
    for who, remedy, variable, folder, below in (
        ("Ray", "RAY_TMPDIR", *ray_folder(), session),
        (
            "vLLM",
            "VLLM_RPC_BASE_PATH",
            "VLLM_RPC_BASE_PATH" if vllm else temporary,
            vllm or tempfile.gettempdir(),
            _IPC,
        ),
    ):
        needed, room = len(os.fsencode(folder + below)), MOST - len(below)
        if needed > MOST:
            problem = f"is too long a path for {who}'s sockets: the system allows {MOST} bytes, and they"
            return Refusal(
                variable,
                f"{problem} would have {needed}",
                folder,
                f"a folder of at most {room} bytes, e.g. {remedy}=/tmp",
            )
    return None


def limits(run: Run) -> Iterator[Finding]:
    """Refuse limits of the shell, and a machine without loopback, under which Ray fails without naming them."""
    if not own_ray():
        return
    try:
        with socket.create_server((LOOPBACK, 0)) as listener:
            socket.create_connection(listener.getsockname(), timeout=10.0).close()
    except OSError as error:
        problem = "must take connections, by which the processes of a run on this machine reach each other"
        yield Refusal(LOOPBACK, problem, str(error), "ip link set lo up, or ip addr add 127.0.0.1/8 dev lo")
    largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if largest != resource.RLIM_INFINITY and largest < FILE:
        problem = f"must let a file have {FILE >> 30} GiB, as Ray's shared memory is one, and a model"
        yield Refusal("ulimit -f", problem, f"{largest >> 10} KiB", f"ulimit -f {_UNLIMITED}")
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
    if (free := free_bytes(nearest(Path(folder)))) < TEMPORARY:
        problem = f"names the folder of Ray's sessions, which needs {TEMPORARY / 1e6:.0f} MB and has {free / 1e6:.1f}"
        yield Refusal(variable, problem, folder, "make room there, or e.g. RAY_TMPDIR=/var/tmp on another disk")


def stack(run: Run) -> Iterator[Finding]:
    """Check what flags need of a GPU machine, if the run will use GPUs: the CPU profile drops these flags."""
    gpus_here = len(gpu.visible())
    if run.device == "cuda" or (run.device == "auto" and gpus_here):
        yield from _enough_gpus(run, gpus_here)
        yield from _allocator(run)
        yield from _liger(run)
        if gpus_here:
            yield from _offload(run)


def _enough_gpus(run: Run, here: int) -> Iterator[Refusal]:
    """Refuse a run that needs more GPUs than this machine has, unless it joins a cluster or plans for other GPUs."""
    if run.device_memory or not own_ray():
        return
    elsewhere = "RAY_ADDRESS of a cluster, or --device_memory 80 to plan for GPUs of 80 GiB elsewhere"
    if not here:
        yield run.refusal("device", "needs a GPU, and this machine has none", f"cpu (--config cpu), {elsewhere}")
    elif run.actor.num_nodes > 1:
        yield run.refusal("actor.num_nodes", "needs a Ray cluster, as this machine is one node", f"1, {elsewhere}")
    elif run.actor.num_gpus_per_node > here:
        problem = f"exceeds the {here} GPUs of this machine"
        yield run.refusal("actor.num_gpus_per_node", problem, f"at most {here}, {elsewhere}")


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
        yield run.refusal("ds.use_liger_kernel", problem, "pip install liger-kernel on every node, or no such flag")


def _offload(run: Run) -> Iterator[Refusal]:
    """Refuse CPU Adam where DeepSpeed can neither load nor compile it."""
    gpus = gpu.probe() if run.ds.adam_offload else gpu.Gpus()
    if not gpus.torch_cuda:  # without the flag, or with torch's CPU build, which the doctor reports
        return
    built, found = toolkit.find_built(), toolkit.find_toolkit(os.environ)
    if problem := toolkit.compile_problem(toolkit.CPU_ADAM, gpus, found, built):
        remedy = "scripts/install_cluster.sh, which builds it, or that CUDA toolkit, or no such flag"
        yield run.refusal("ds.adam_offload", f"cannot work: {problem}", remedy)
