"""Checks of a run's output folders: writable, and without another run's checkpoints or model."""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from openrlhf_shear.config.refusal import Finding, Note, refusal
from openrlhf_shear.line.run import Run

LOCK = ".lock"  # in --ckpt.path, locked by the trainer while it lives
LOCK_SECONDS = 10.0  # the last processes of a killed run may hold its lock for a while
_WEIGHTS = ("*.safetensors", "*.bin")


def run_folder(run: Run) -> Path:
    """Return the run's folder, which holds its checkpoints, its log and its `run.yaml`."""
    return Path(run.ckpt.path).parent


def folders(run: Run) -> Iterator[Finding]:
    places = {flag: run.flags[flag] for flag in ("ckpt.path", "ckpt.output_dir", "logger.tensorboard_dir")}
    for flag, folder in [*places.items(), ("ckpt.path", run_folder(run) / "logs")]:
        if folder and (problem := not_writable(nearest(Path(folder)))):
            yield refusal(flag, f"cannot be written to: {problem}", folder, "another folder")
    if Path(run.ckpt.path).absolute() == Path(run.ckpt.output_dir).absolute():
        message = "--ckpt.path and --ckpt.output_dir are the same folder, so the model lies among checkpoints"
        yield Note(f"{message}; use e.g. RUN/ckpt and RUN/model")


def nearest(folder: Path) -> Path:
    """Return the folder, or the nearest folder above it that exists."""
    # Path.exists raises where a folder above cannot be searched; os.path.exists says no.
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))


def not_writable(place: Path) -> str:
    """Return why nothing can be made in an existing folder, by making a folder there; "" if it can."""
    if not (place.is_dir() and os.access(place, os.W_OK)):
        return f"{place} is not a folder, or is read-only"
    try:  # os.access says yes to root in /proc, /sys and on a disk without inodes
        os.rmdir(tempfile.mkdtemp(prefix=".shear-", dir=place))
    except OSError as error:
        return f"nothing can be made in {place} ({os.strerror(error.errno)})"
    return ""


def checkpoints(run: Run) -> Iterator[Finding]:
    """Refuse to write into the folders of another run: of one that still writes, or one that has finished."""
    tags = sorted(path.name for path in Path(run.ckpt.path, "_actor").glob("*global_step*"))
    if _is_busy(Path(run.ckpt.path), 0.0 if run.dry_run else LOCK_SECONDS):
        yield refusal("ckpt.path", "is the folder of a run that still writes", run.ckpt.path, "another folder")
    elif tags and run.ckpt.save_steps > 0 and not run.ckpt.load_enable:
        remedy = "--ckpt.load_enable to resume that run, or another folder"
        yield refusal("ckpt.path", f"has checkpoints of another run ({', '.join(tags[:3])})", run.ckpt.path, remedy)
    elif has_model(run) and not tags:
        problem = "has a model already, of a run without checkpoints, and this run would replace it"
        yield refusal("ckpt.output_dir", problem, run.ckpt.output_dir, "another folder, or move that model away")


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
    try:
        with (folder / LOCK).open("r+") as file:
            return not locked(file, patience)
    except OSError:  # there is none, or a file system without locks: the trainer tells
        return False
