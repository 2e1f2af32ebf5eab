"""The policy that every run starts from: shipped, warmed up to an accuracy, or a user's folder."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from openrlhf_shear.arithmetic.problems import POLICY_DIR, STEPS
from openrlhf_shear.lab.settings import SHIPPED, LabSettings

WEIGHTS = "model.safetensors"
SHIPPED_FILLERS = 2


def start_policy(settings: LabSettings, output: Path, report: Callable[[str], None]) -> Path:
    """The start policy's folder; it is warmed up first, in minutes, where `settings.start` is an accuracy that no
    earlier call has reached. All tasks' policies are kept under `output`/policies.

    Raises:
        ValueError: there is no such policy for this task.
        RuntimeError: the warm-up did not get there.
    """
    if settings.start == SHIPPED:
        if (settings.operations, settings.fillers) != (STEPS, SHIPPED_FILLERS):
            raise ValueError(
                f"lab.start: the shipped policy knows {STEPS} operations with {SHIPPED_FILLERS} fillers: got "
                f"{settings.operations} with {settings.fillers}; use --start 0.4, or another accuracy, to warm one up"
            )
        return POLICY_DIR
    accuracy = _accuracy(settings.start)
    if accuracy is None:
        folder = Path(settings.start)
        if not (folder / WEIGHTS).is_file():
            raise ValueError(
                f"lab.start: no policy in {folder}; use {SHIPPED}, an accuracy between 0 and 1 such as 0.2, or a "
                f"folder from python -m openrlhf_shear.cli.warm_up_arithmetic"
            )
        return folder
    folder = output / "policies" / f"operations{settings.operations}-fillers{settings.fillers}-accuracy{accuracy:g}"
    if not (folder / WEIGHTS).is_file():
        _warm_up(settings, accuracy, folder, report)
    return folder


def fingerprint(folder: Path) -> str:
    """What tells this policy from others: the SHA-256 of its weights."""
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()


def _accuracy(text: str) -> float | None:
    try:
        accuracy = float(text)
    except ValueError:
        return None
    return accuracy if 0 < accuracy < 1 else None


def _warm_up(settings: LabSettings, accuracy: float, folder: Path, report: Callable[[str], None]) -> None:
    from openrlhf_shear.arithmetic.policy import save
    from openrlhf_shear.arithmetic.warm_up import WarmUpSettings, warm_up

    report(f"warming up a start policy to {accuracy:.0%} ({settings.operations} operations); a few minutes")
    wanted = WarmUpSettings(target_accuracy=accuracy, operations=settings.operations, fillers=settings.fillers)
    result = warm_up(wanted, report)
    if not result.reached_target:
        raise RuntimeError(f"lab.start: {result.steps} steps of warm-up did not reach {accuracy:.0%}; use a lower one")
    report(f"start policy: {result.accuracy.correct:.1%} right on {result.accuracy.problems} held-out problems")
    partial = folder.with_name(folder.name + f".partial{os.getpid()}")
    save(result.model, result.tokenizer, partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
