"""Where a run writes: places that can be written to, and that no other run has its checkpoints in."""

import os
from collections.abc import Iterator
from pathlib import Path

from openrlhf_shear.config.refusal import Finding, refusal
from openrlhf_shear.preflight.refusal import Values


def run_folder(values: Values) -> Path:
    """Where the run's checkpoints are, beside its log and its `run.yaml`."""
    return Path(values["ckpt.path"]).parent


def folders(values: Values) -> Iterator[Finding]:
    places = {flag: values[flag] for flag in ("ckpt.path", "ckpt.output_dir", "logger.tensorboard_dir")}
    for flag, given in [*places.items(), ("ckpt.path", run_folder(values) / "logs")]:
        if given:
            folder = Path(given).absolute()
            place = next(path for path in (folder, *folder.parents) if path.exists())
            if not (place.is_dir() and os.access(place, os.W_OK)):
                yield refusal(flag, f"cannot be written to: {place} is no folder, or read-only", given, "another place")


def checkpoints(values: Values) -> Iterator[Finding]:
    """A run that starts afresh among another's checkpoints could later go on from those."""
    kept = sorted(path.name for path in Path(values["ckpt.path"], "_actor").glob("*global_step*"))
    if kept and values["ckpt.save_steps"] > 0 and not values["ckpt.load_enable"]:
        remedy = "--ckpt.load_enable to go on with it, or another folder"
        yield refusal(
            "ckpt.path", f"has checkpoints of another run ({', '.join(kept[:3])})", values["ckpt.path"], remedy
        )
