"""The NVIDIA driver, what torch was built for, and the GPUs; NVML is asked directly, as it is there with the driver."""

import ctypes
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from openrlhf_shear.preflight.doctor.result import GIB, Result, fail, ok, warn

_LIBRARY = "libnvidia-ml.so.1"
_FREE = 0.9  # of a GPU's memory, below which something else is taken to use it


@dataclass(frozen=True)
class Gpu:
    """Name, and free and all memory [bytes]."""

    name: str
    free: int
    total: int


@dataclass(frozen=True)
class Gpus:
    """What the driver and torch know."""

    driver: str | None = None  # version of the NVIDIA driver; None where there is none
    cuda: tuple[int, int] = (0, 0)  # the newest CUDA (major, minor) that the driver runs
    devices: tuple[Gpu, ...] = ()  # those that the driver knows, whatever is visible to this process
    torch_cuda: str | None = None  # the CUDA that torch was built for, e.g. "13.0"; None for a build for the CPU
    torch_sees: int = 0  # devices that torch can use
    torch_problem: str = ""  # why torch cannot be imported; empty where it can


def probe() -> Gpus:
    asked = _ask_driver()
    try:
        import torch

        return Gpus(*asked, torch.version.cuda, torch.cuda.device_count() if torch.cuda.is_available() else 0)
    except (ImportError, OSError) as error:
        return Gpus(*asked, torch_problem=str(error).splitlines()[0])


def visible() -> list[Gpu]:
    """GPUs that this process may use, by the driver."""
    named, gpus = os.environ.get("CUDA_VISIBLE_DEVICES"), _ask_driver()[2]
    if named is None or named.startswith(("GPU-", "MIG-")):
        return [*gpus]
    return [gpu for index, gpu in enumerate(gpus) if str(index) in named.split(",")]


def smallest() -> int | None:
    """Memory [bytes] of the smallest of them; None where there is none."""
    return min((gpu.total for gpu in visible()), default=None)


def driver(gpus: Gpus) -> Result:
    """Whether torch and the driver fit."""
    name, built = "GPU driver", f"torch is built for {f'CUDA {gpus.torch_cuda}' if gpus.torch_cuda else 'the CPU'}"
    if gpus.torch_problem:
        return fail(name, f"torch cannot be imported: {gpus.torch_problem}", "install torch anew", "no torch")
    if gpus.driver is None:
        if gpus.torch_cuda is None:
            return ok(name, f"none, and {built}: the CPU profile", "none")
        remedy = "install the NVIDIA driver; a container needs the GPUs handed in (docker run --gpus all)"
        return warn(name, f"none, but {built}: --device auto trains on the CPU", remedy, "none")
    seen = f"{gpus.driver}, runs CUDA up to {'.'.join(map(str, gpus.cuda))}; {built}"
    same = f"driver {gpus.driver}, {built}"
    if gpus.torch_cuda is None:
        return fail(name, f"{seen}, so --device auto trains on the CPU", "install torch's build for CUDA", same)
    # Within a major version any minor one runs; across two, only with the compatibility libraries of a data centre.
    if gpus.cuda[0] < int(gpus.torch_cuda.split(".")[0]) and not gpus.torch_sees:
        problem = f"{seen}: too old, so torch sees no GPU"
        return fail(name, problem, f"update the driver, or install torch for CUDA {gpus.cuda[0]}", same)
    return ok(name, seen, same)


def devices(gpus: Gpus) -> Result:
    name = "GPUs"
    kinds = ", ".join(f"{count} x {kind}" for kind, count in Counter(one.name for one in gpus.devices).items())
    if not gpus.devices:
        return ok(name, "none", "none")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus.torch_sees == 0:
        remedy = f"see the driver above; CUDA_VISIBLE_DEVICES is {'unset' if visible is None else repr(visible)}"
        return fail(name, f"{kinds}; torch sees none", remedy, kinds)
    if gpus.torch_sees < len(gpus.devices):
        remedy = f"look at CUDA_VISIBLE_DEVICES ({visible!r}) if all were meant"
        return warn(name, f"{kinds}; torch sees {gpus.torch_sees}", remedy, kinds)
    return ok(name, kinds, kinds)


def gpu_memory(gpus: Gpus) -> Result:
    busy = [(n, gpu) for n, gpu in enumerate(gpus.devices) if gpu.free < _FREE * gpu.total]
    if busy:
        told = ", ".join(f"GPU {n}: {gpu.free / GIB:.0f} of {gpu.total / GIB:.0f} GiB free" for n, gpu in busy)
        remedy = "a training run takes nearly all of it: stop what uses it (nvidia-smi lists processes)"
        return warn("GPU memory", told, remedy)
    return ok("GPU memory", ", ".join(f"{gpu.total / GIB:.0f} GiB" for gpu in gpus.devices) or "no GPU")


def announced(gpus: Gpus, count: float) -> Result:
    """Whether a node of a Ray cluster offers the GPUs that it has; on a CPU machine they are logical ones."""
    name = "GPUs announced to Ray"
    if gpus.devices and count != len(gpus.devices):
        remedy = f"ray start --num-gpus {len(gpus.devices)} there; Ray waits for ever for GPUs that nobody offers"
        return warn(name, f"{count:g} of {len(gpus.devices)}", remedy)
    return ok(name, f"{count:g}")


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def _ask_driver() -> tuple[str | None, tuple[int, int], tuple[Gpu, ...]]:
    """The driver's version, its CUDA and its devices."""
    nvml = None
    with suppress(OSError):
        nvml = ctypes.CDLL(_LIBRARY)
    if nvml is None or nvml.nvmlInit_v2() != 0:  # without the kernel's driver, as in a container without --gpus
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
