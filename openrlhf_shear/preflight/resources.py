"""Checks of this machine: room on its disks and in Ray's temporary folder, processes, address space, GPU packages.

Checks of what would run out are left out if the run joins a Ray cluster (`RAY_ADDRESS`).
"""

import os
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from openrlhf_shear.config.refusal import Finding, Refusal, refusal
from openrlhf_shear.doctor import gpu, toolkit
from openrlhf_shear.doctor.machine import ADDRESSES, PROCESSES, TEMPORARY
from openrlhf_shear.line.run import Run
from openrlhf_shear.preflight.outputs import free_bytes, nearest, own_ray
from openrlhf_shear.rewards.limits import address_limit, process_limit, tasks_of_user

_UNLIMITED = "unlimited before the run"
MOST = 107  # bytes that the system allows for the path of a Unix socket
_SESSION = "/ray/session_2026-01-31_23-59-59_999999_{pid}/sockets/plasma_store"  # Ray's longest, below its folder
_IPC = "/01234567-89ab-cdef-0123-456789abcdef"  # vLLM's


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
    if (free := free_bytes(nearest(Path(folder)))) < TEMPORARY:
        problem = f"names the folder of Ray's sessions, which needs {TEMPORARY / 1e6:.0f} MB and has {free / 1e6:.1f}"
        yield Refusal(variable, problem, folder, "make room there, or e.g. RAY_TMPDIR=/var/tmp on another disk")


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
