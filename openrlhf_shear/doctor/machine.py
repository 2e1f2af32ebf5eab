"""Checks of the jail for graded programs, memory, disk, limits of the shell and the hub."""

import os
import resource
import shutil
from collections.abc import Callable
from glob import glob
from pathlib import Path

from openrlhf_shear.data.hub import unreachable
from openrlhf_shear.doctor.result import GIB, Result, fail, ok, warn
from openrlhf_shear.rewards.jail import Jail, JailError, find_jail
from openrlhf_shear.rewards.jail.escapes import try_escapes
from openrlhf_shear.rewards.limits import address_limit, process_limit, tasks_of_user

# Recommended and minimum values. Memory and disk are those of the built-in task on the CPU. A 7B actor with ZeRO-3 and
# checkpoints takes hundreds of GiB; Ray, vLLM and DeepSpeed report such needs better than a guess here could.
MEMORY = (8 * GIB, 2 * GIB)
SHARED_MEMORY = (2 * GIB, GIB // 4)
DISK = (20 * GIB, GIB)
OPEN_FILES = (8192, 1024)  # Ray itself advises 8192
PROCESSES = (4096, 400)  # processes and threads of a user; the built-in task takes 400 on two cores
ADDRESSES = 12 * GIB  # address space; an actor of the built-in model reserves 9.8 GiB on two cores, and more on more
TEMPORARY = 16 << 20  # bytes of Ray's temporary folder; a session begins with less than 1 MB, and its logs grow
# Of cgroups v2 and v1: folder, files of a container's limit and usage, and the name of inactive cache in memory.stat.
_CGROUPS = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def jail(find: Callable[[], Jail] = find_jail) -> Result:
    """Check that a jail works on this machine."""
    try:
        mechanisms = find().mechanisms
    except JailError as error:
        problem, _, remedy = str(error).partition("; ")
        return fail("jail", problem, f"{remedy}; only rewards math and code, and benchmarks, need it")
    return ok("jail", f"bubblewrap and seccomp, {len(mechanisms)} mechanisms")


def escapes(attempt: Callable[[Jail], list[tuple[str, str, str]]] = try_escapes) -> Result:
    """Try every known escape from the jail against this machine."""
    name = "jail, escapes"
    try:
        attempts = attempt(find_jail())
    except JailError:
        return fail(name, "not tried: there is no jail", "see the jail above")
    if worked := [f"{what} ({outcome})" for what, _, outcome in attempts if not refused(outcome)]:
        return fail(name, "; ".join(worked), "grade nothing that you do not trust here, and please report it")
    return ok(name, f"{len(attempts)} tried, all refused")


def refused(outcome: str) -> bool:
    """Return whether the result of an attempt in `try_escapes` means that the jail held."""
    return outcome.startswith("refused")


def free_memory(root: Path = Path("/")) -> tuple[int, int]:
    """Return the available and the total memory of this machine or container [bytes].

    Inactive file cache counts as available, as it does for docker and kubernetes.

    Args:
        root: folder that holds /proc and /sys.
    """
    lines = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
    kib = {line[0].rstrip(":"): int(line[1]) for line in lines if len(line) > 1}
    free, total = kib["MemAvailable"] << 10, kib["MemTotal"] << 10
    for folder, limit, usage, cache in _CGROUPS:
        for here in _own_groups(root, folder):
            try:
                most, now = ((here / name).read_text().strip() for name in (limit, usage))
            except OSError:
                continue
            if most.isdecimal():
                stat = here / "memory.stat"
                lines = stat.read_text().splitlines() if stat.is_file() else []
                used = max(0, int(now) - int(dict(line.split() for line in lines).get(cache, 0)))
                free, total = min(free, int(most) - used), min(total, int(most))
    return free, total


def _own_groups(root: Path, controller: str) -> list[Path]:
    """Return this process's cgroup (a Slurm step's, say) and all above it; `controller` is "" in version 2."""
    top = root / "sys/fs/cgroup" / controller
    try:
        lines = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return [top]
    own = next((path for _, names, path in lines if controller in names.split(",")), "/").strip("/")
    return [top.joinpath(*Path(own).parts[:depth]) for depth in range(len(Path(own).parts), -1, -1)]


def memory(free: int, total: int) -> Result:
    return _room("memory", free, total, "", MEMORY, "stop what uses it; Ray kills workers when it runs out")


def shared_memory(folder: Path = Path("/dev/shm")) -> Result:
    """Check /dev/shm, which holds Ray's object store and NCCL's buffers between the GPUs of a node."""
    name, remedy = "shared memory", "a container needs more: docker run --shm-size 16g, or --ipc host"
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return fail(name, f"{folder}: {error.strerror}", remedy)
    return _room(name, usage.free, usage.total, f" in {folder}", SHARED_MEMORY, remedy)


def disk(folder: Path) -> Result:
    """Check that the folder of runs is writable and has free space."""
    there = folder.resolve()
    while not os.path.exists(there):  # Path.exists raises where a folder above cannot be searched
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        return fail("disk", f"{there} cannot be written to", "use a folder that you can write to: --path DIR")
    usage = shutil.disk_usage(there)
    remedy = "free some space, or use --path DIR, --ckpt.output_dir and --ckpt.path on a larger disk"
    return _room("disk", usage.free, usage.total, f" in {there}", DISK, remedy)


def open_files(limit: int | None = None) -> Result:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if soft == resource.RLIM_INFINITY:
        soft = 2**63
    remedy = f"ulimit -n {8 * OPEN_FILES[0]} before ray start; each node of a cluster opens thousands"
    return _at_least("open files", soft, f"at most {soft}", OPEN_FILES, remedy)


def processes() -> Result:
    """Check that `ulimit -u` leaves this user enough processes and threads."""
    name, limit = "processes", process_limit()
    if limit is None:
        return ok(name, "no limit")
    running = tasks_of_user()
    remedy = "ulimit -u unlimited before ray start; each core of a node adds a worker of Ray with its threads"
    return _at_least(name, limit - running, f"{running} of at most {limit} run", PROCESSES, remedy)


def addresses() -> Result:
    """Check that `ulimit -v` leaves processes enough address space."""
    name, limit = "addresses", address_limit()
    if limit is None:
        return ok(name, "no limit")
    remedy = "ulimit -v unlimited before ray start; CUDA, vLLM and the jails of graders reserve far more than they use"
    return (warn if limit >= ADDRESSES else fail)(name, f"ulimit -v is {limit >> 10} ({limit / GIB:.1f} GiB)", remedy)


def _room(name: str, free: int, total: int, where: str, limits: tuple[int, int], remedy: str) -> Result:
    return _at_least(name, free, f"{free / GIB:.1f} of {total / GIB:.1f} GiB free{where}", limits, remedy)


def _at_least(name: str, value: int, seen: str, limits: tuple[int, int], remedy: str) -> Result:
    """Return ok from the first limit upwards, a warning from the second limit upwards, else a failure."""
    wanted, needed = limits
    if value >= wanted:
        return ok(name, seen)
    return (warn if value >= needed else fail)(name, seen, remedy)


def hub(reach: Callable[[], str] = unreachable) -> Result:
    """Check that models and data sets can be fetched; `reach` returns the problem, or ""."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    cached = glob("*--*", root_dir=cache)  # none if the folder is missing or cannot be read
    there = f"{len(cached)} models and data sets in {cache}"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return ok("hub", f"HF_HUB_OFFLINE is set; {there}")
    if problem := reach():
        remedy = "use local folders or the cache, and set HF_HUB_OFFLINE=1 so that nothing waits for the hub"
        return warn("hub", f"{problem}; {there}", remedy)
    return ok("hub", f"{constants.ENDPOINT} answers; {there}")
