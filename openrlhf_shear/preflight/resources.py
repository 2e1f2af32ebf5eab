"""Checks of what would run out: room on the run's disks and in Ray's temporary folder, processes, address space.

They look at this machine, so they are left out if the run joins a Ray cluster (`RAY_ADDRESS`).
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

from openrlhf_shear.config.refusal import Finding, Refusal, Told
from openrlhf_shear.doctor.machine import ADDRESSES, PROCESSES, TEMPORARY
from openrlhf_shear.line.values import ESTIMATOR, Values
from openrlhf_shear.memory.saved import checkpoint_bytes, model_bytes
from openrlhf_shear.preflight.memory import UnknownError, plan
from openrlhf_shear.preflight.outputs import nearest, weights_in
from openrlhf_shear.preflight.sockets import ray_folder
from openrlhf_shear.rewards.limits import address_limit, process_limit, tasks_of_user

_UNLIMITED = "unlimited before the run"


def own_ray() -> bool:
    """Return whether the run starts a private Ray on this machine."""
    return os.environ.get("RAY_ADDRESS", "local") in ("", "local")


def limits(values: Values) -> Iterator[Finding]:
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


def temporary_folder(values: Values) -> Iterator[Finding]:
    """Refuse a full folder for Ray's sessions, without which Ray fails or does not answer."""
    if not own_ray():
        return
    variable, folder = ray_folder()
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


def disks(values: Values) -> Iterator[Finding]:
    """Refuse disks without room for the model and a checkpoint; tell if --ckpt.max_num asks for more than there is."""
    if not own_ray() or values["device_memory"]:  # a plan for a machine elsewhere
        return
    try:
        shapes = plan(values).shapes
    except UnknownError:
        return
    checkpoint = _checkpoint(values, {name: shape.parameters for name, shape in shapes.items()})
    there = Path(values["ckpt.path"], "_actor").glob("*global_step*")  # best_global_stepN too
    kept = sum(not path.name.endswith("_hf") for path in there)
    needs = [
        _Need("ckpt.path", "a checkpoint", nearest(Path(values["ckpt.path"])), checkpoint * (not kept)),
        _Need(
            "ckpt.output_dir",
            "the model",
            nearest(Path(values["ckpt.output_dir"])),
            max(0, model_bytes(shapes["actor"].parameters) - weights_in(values)),
        ),
    ]
    refused = False
    for disk in {need.folder.stat().st_dev for need in needs}:
        here = [need for need in needs if need.folder.stat().st_dev == disk and need.size]
        needed = sum(need.size for need in here)
        if here and (free := _free(here[0].folder)) < needed:
            refused = True
            yield _no_room(values, here, needed, free)
    if checkpoint and not refused:
        yield from _fewer_checkpoints(values, checkpoint, kept, sum(need.size for need in needs[1:]))


def _checkpoint(values: Values, parameters: dict[str, int]) -> int:
    """Return the bytes of a checkpoint; with LoRA, whose adapters are small, those of the frozen weights."""
    if values["ckpt.save_steps"] <= 0:
        return 0
    actor, critic = parameters["actor"], parameters["critic"] if values[ESTIMATOR] == "gae" else 0
    size = model_bytes(actor) * values["ckpt.save_hf"]
    if not values["ckpt.disable_ds"]:
        frozen = bool(values["ds.lora.rank"])
        size += checkpoint_bytes(actor, actor * frozen, values["train.enable_ema"])
        size += checkpoint_bytes(critic, critic * frozen)
    return size


def _no_room(values: Values, needs: list[_Need], needed: int, free: float) -> Refusal:
    first, *others = reversed(needs)
    also = "".join(f", and {need.size / 1e9:.3g} for {need.what} (--{need.flag})" for need in others)
    problem = f"needs {first.size / 1e9:.3g} GB for {first.what}{also}; its disk has {free / 1e9:.3g} GB left"
    return Refusal(first.flag, problem, repr(values[first.flag]), "a disk with room, or make room")


def _fewer_checkpoints(values: Values, size: int, kept: int, model: int) -> Iterator[Told]:
    """Tell if the disk has room for fewer checkpoints than the run keeps, the best and the newest included."""
    path, output = (nearest(Path(values[flag])) for flag in ("ckpt.path", "ckpt.output_dir"))
    free = _free(path) - model * (path.stat().st_dev == output.stat().st_dev)
    most = max(1, int(min(values["ckpt.max_num"], values["ckpt.max_mem"] * 2**30 / size)))
    room = kept + max(free, 0) // size
    evaluates = (values["eval.dataset"] or values["eval.suite"]) and values["ckpt.best_metric_key"] != "none"
    best = bool(evaluates and not values["ckpt.best_weights_only"] and not values["ckpt.disable_ds"])
    if room < most + 1 + best:
        told = f"the disk of --ckpt.path has room for checkpoints of {size / 1e9:.3g} GB: {room}"
        needs = (
            f"--ckpt.max_num {values['ckpt.max_num']} needs {most + 1 + best}, as a run deletes the oldest after a save"
        )
        needs += " and keeps that of the best evaluation" * best
        yield Told(f"{told}; {needs}")


def _free(folder: Path) -> float:
    """Return the free bytes of a folder's disk; infinity if the file system does not tell."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else inf
