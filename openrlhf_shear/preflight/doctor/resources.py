"""Memory, shared memory, disk and open files of a machine."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

from openrlhf_shear.preflight.doctor.result import GIB, Result, at_least, fail

SHM = Path("/dev/shm")
# What is wanted, and what is needed at the least. Memory and disk: of the built-in task on the CPU; a 7B actor with
# ZeRO-3 and checkpoints takes hundreds of GiB, of which Ray, vLLM and DeepSpeed tell more than could be guessed here.
MEMORY_GIB = (8, 2)
SHM_GIB = (2, 0.25)
DISK_GIB = (20, 1)
OPEN_FILES = (8192, 1024)  # Ray itself advises 8192


def free_memory(root: Path = Path("/")) -> tuple[int, int]:
    """Available and all memory of this machine or container [bytes].

    Args:
        root: of the file system that /proc and /sys are in.
    """
    lines = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
    kib = {line[0].rstrip(":"): int(line[1]) for line in lines if len(line) > 1}
    free, total = kib["MemAvailable"] << 10, kib["MemTotal"] << 10
    for names in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        try:
            most, now = ((root / "sys/fs/cgroup" / name).read_text().strip() for name in names)
        except OSError:
            continue
        if most.isdecimal() and int(most) < total:
            free, total = min(free, int(most) - int(now)), int(most)
    return free, total


def memory(free: int, total: int) -> Result:
    seen = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    return at_least("memory", free / GIB, seen, *MEMORY_GIB, "stop what uses it; Ray kills workers when it runs out")


def shared_memory(folder: Path = SHM) -> Result:
    """Ray's object store is there, and NCCL's buffers between the GPUs of a node."""
    name, remedy = "shared memory", "a container needs more: docker run --shm-size 16g, or --ipc host"
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return fail(name, f"{folder}: {error.strerror}", remedy)
    seen = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free in {folder}"
    return at_least(name, usage.free / GIB, seen, *SHM_GIB, remedy)


def disk(folder: Path) -> Result:
    """Of where a run writes."""
    name, there = "disk", folder.resolve()
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK):
        return fail(name, f"{there} cannot be written to", "use a folder of yours: --path DIR")
    usage = shutil.disk_usage(there)
    seen = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free in {there}"
    remedy = "make room, or use --path DIR, and --ckpt.output_dir and --ckpt.path, on a larger disk"
    return at_least(name, usage.free / GIB, seen, *DISK_GIB, remedy)


def open_files(limit: int | None = None) -> Result:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if soft == resource.RLIM_INFINITY:
        soft = 2**63
    remedy = f"ulimit -n {8 * OPEN_FILES[0]} before ray start; each node of a cluster opens thousands"
    return at_least("open files", soft, f"at most {soft}", *OPEN_FILES, remedy)
