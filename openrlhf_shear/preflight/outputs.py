"""Checks of a run's output folders: writable, and without another run's checkpoints."""

import os
from collections.abc import Iterator
from pathlib import Path

from openrlhf_shear.config.refusal import Finding, refusal
from openrlhf_shear.line.values import Values


def run_folder(values: Values) -> Path:
    """Return the run's folder, which holds its checkpoints, its log and its `run.yaml`."""
    return Path(values["ckpt.path"]).parent


def folders(values: Values) -> Iterator[Finding]:
    places = {flag: values[flag] for flag in ("ckpt.path", "ckpt.output_dir", "logger.tensorboard_dir")}
    for flag, given in [*places.items(), ("ckpt.path", run_folder(values) / "logs")]:
        if given:
            folder = Path(given).absolute()
            place = next(path for path in (folder, *folder.parents) if path.exists())
            if not (place.is_dir() and os.access(place, os.W_OK)):
                problem = f"cannot be written to: {place} is not a folder, or is read-only"
                yield refusal(flag, problem, given, "another folder")


def checkpoints(values: Values) -> Iterator[Finding]:
    """Refuse a fresh run in a folder with another run's checkpoints: a later resume could load those."""
    kept = sorted(path.name for path in Path(values["ckpt.path"], "_actor").glob("*global_step*"))
    if kept and values["ckpt.save_steps"] > 0 and not values["ckpt.load_enable"]:
        remedy = "--ckpt.load_enable to resume that run, or another folder"
        yield refusal(
            "ckpt.path", f"has checkpoints of another run ({', '.join(kept[:3])})", values["ckpt.path"], remedy
        )
