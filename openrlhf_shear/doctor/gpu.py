"""Checks of the NVIDIA driver, torch's build and the GPUs. NVML answers directly, since every driver brings it."""

import ctypes
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from openrlhf_shear.doctor.result import GIB, Result, fail, ok, warn

_LIBRARY = "libnvidia-ml.so.1"
_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # torch reads the first set
_FREE = 0.9  # share of a GPU's memory; with less free, another process must be using the GPU


@dataclass(frozen=True)
class Gpu:
    """A GPU's name, and its free and total memory [bytes]."""

    name: str
    free: int
    total: int


@dataclass(frozen=True)
class Gpus:
    """What the driver and torch report."""

    driver: str | None = None  # version of the NVIDIA driver; None without a driver
    cuda: tuple[int, int] = (0, 0)  # the newest CUDA (major, minor) that the driver runs
    devices: tuple[Gpu, ...] = ()  # all of the driver's devices, visible to this process or not
    torch_cuda: str | None = None  # the CUDA that torch was built for, e.g. "13.0"; None for torch's CPU build
    torch_sees: int = 0  # devices that torch can use
    torch_problem: str = ""  # why torch cannot be imported; empty if it can


def probe() -> Gpus:
    """Ask the driver and torch."""
    driver_says = ask_driver()
    try:
        import torch

        return Gpus(*driver_says, torch.version.cuda, torch.cuda.device_count() if torch.cuda.is_available() else 0)
    except (ImportError, OSError) as error:
        return Gpus(*driver_says, torch_problem=str(error).splitlines()[0])


def visible() -> list[Gpu]:
    """Return the driver's GPUs that this process may use."""
    named, gpus = os.environ.get("CUDA_VISIBLE_DEVICES"), ask_driver()[2]
    if named is None or named.startswith(("GPU-", "MIG-")):
        return [*gpus]
    return [gpu for index, gpu in enumerate(gpus) if str(index) in named.split(",")]


def smallest() -> int | None:
    """Return the memory [bytes] of the smallest visible GPU; None without a GPU."""
    return min((gpu.total for gpu in visible()), default=None)


def driver(gpus: Gpus) -> Result:
    """Check that torch and the driver fit together."""
    name, build = "GPU driver", f"CUDA {gpus.torch_cuda}" if gpus.torch_cuda else "the CPU"
    built = f"torch is built for {build}"
    if gpus.torch_problem:
        return fail(name, f"torch cannot be imported: {gpus.torch_problem}", "reinstall torch", "no torch")
    if gpus.driver is None:
        if gpus.torch_cuda is None:
            return ok(name, f"none, and {built}: the CPU profile")
        remedy = "install the NVIDIA driver; give a container its GPUs with docker run --gpus all"
        return warn(name, f"none, but {built}: --device auto trains on the CPU", remedy)
    seen = f"{gpus.driver}, runs CUDA up to {'.'.join(map(str, gpus.cuda))}; {built}"
    same = f"torch for {build}"  # drivers may differ: each is checked against its torch
    if gpus.torch_cuda is None:
        return fail(name, f"{seen}, so --device auto trains on the CPU", "install torch's build for CUDA", same)
    # Within a major version every minor version runs; across major versions only with CUDA's compatibility libraries.
    if gpus.cuda[0] < int(gpus.torch_cuda.split(".")[0]) and not gpus.torch_sees:
        remedy = f"update the driver, or add cuda-compat (docs/install.md), or install torch for CUDA {gpus.cuda[0]}"
        return fail(name, f"{seen}: too old, so torch sees no GPU", remedy, same)
    return ok(name, seen, same)


def devices(gpus: Gpus) -> Result:
    name = "GPUs"
    kinds = ", ".join(f"{count} x {kind}" for kind, count in Counter(gpu.name for gpu in gpus.devices).items())
    if not gpus.devices:
        return ok(name, "none")  # as on a head that runs no model
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus.torch_sees == 0:
        remedy = f"see the driver above; CUDA_VISIBLE_DEVICES is {'unset' if visible is None else repr(visible)}"
        return fail(name, f"{kinds}; torch sees none", remedy, kinds)
    if gpus.torch_sees < len(gpus.devices):
        remedy = f"check CUDA_VISIBLE_DEVICES ({visible!r}) if torch should see all of them"
        return warn(name, f"{kinds}; torch sees {gpus.torch_sees}", remedy, kinds)
    return ok(name, kinds, kinds)


def gpu_memory(gpus: Gpus) -> Result:
    busy = [(n, gpu) for n, gpu in enumerate(gpus.devices) if gpu.free < _FREE * gpu.total]
    if busy:
        message = ", ".join(f"GPU {n}: {gpu.free / GIB:.0f} of {gpu.total / GIB:.0f} GiB free" for n, gpu in busy)
        remedy = "a training run takes nearly all of it: stop the processes that use it (nvidia-smi lists them)"
        return warn("GPU memory", message, remedy)
    return ok("GPU memory", ", ".join(f"{gpu.total / GIB:.0f} GiB" for gpu in gpus.devices) or "no GPU")


def announced(gpus: Gpus, count: float) -> Result:
    """Check that a node of a Ray cluster offers all of its GPUs; a CPU machine offers logical GPUs.

    All nodes that offer GPUs must have a driver that shows some, or none of them: else a run waits on one for a GPU.
    """
    name = "GPUs announced to Ray"
    kind = "" if not count else "the driver's GPUs" if gpus.devices else "logical GPUs, for want of a driver's"
    if gpus.devices and count != len(gpus.devices):
        remedy = f"ray start --num-gpus {len(gpus.devices)} there; Ray waits forever for GPUs that no node offers"
        return warn(name, f"{count:g} of {len(gpus.devices)}", remedy, kind)
    return ok(name, f"{count:g}", kind)


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def ask_driver() -> tuple[str | None, tuple[int, int], tuple[Gpu, ...]]:
    """Return the driver's version, its CUDA and its devices."""
    nvml = None
    with suppress(OSError):
        nvml = ctypes.CDLL(_LIBRARY)
    if nvml is None or nvml.nvmlInit_v2() != 0:  # no kernel driver, as in a container without --gpus
        return None, (0, 0), ()
    try:
        text, number = ctypes.create_string_buffer(96), ctypes.c_int()
        nvml.nvmlSystemGetDriverVersion(text, 96)
        version = text.value.decode()
        nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(number))
        cuda = (number.value // 1000, number.value % 1000 // 10)
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        return version, cuda, tuple(_device(nvml, index) for index in range(count.value))
    finally:
        nvml.nvmlShutdown()


def _device(nvml: ctypes.CDLL, index: int) -> Gpu:
    handle, name, memory = ctypes.c_void_p(), ctypes.create_string_buffer(96), _Memory()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    nvml.nvmlDeviceGetName(handle, name, 96)
    nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return Gpu(name.value.decode(), memory.free, memory.total)


def expandable(environ: Mapping[str, str] = os.environ) -> str:
    """Return the variable that turns expandable segments on, or "".

    >>> expandable({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64, expandable_segments:True"})
    'PYTORCH_ALLOC_CONF'
    >>> expandable({"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": ""})
    ''
    """
    name = next((name for name in _VARIABLES if name in environ), "")
    settings = "".join(environ.get(name, "").split()).split(",")
    return name if "expandable_segments:True" in settings else ""


def allocator(environ: Mapping[str, str] = os.environ) -> Result:
    """Warn of expandable segments, which `--train.colocate_all` cannot send to vLLM."""
    name = "CUDA allocator"
    if variable := expandable(environ):
        seen = f"{variable} is {environ[variable]}: --train.colocate_all cannot send weights to vLLM"
        return warn(name, seen, f"unset {variable} before ray start; no action without --train.colocate_all")
    return ok(name, "no expandable segments")
