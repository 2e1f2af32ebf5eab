"""Rollouts of all steps of a run, from the files that `--credit.dump_rollouts_every` writes."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from openrlhf_shear.rollouts.record import Rollout, TableError, read_rollouts

_STEPS, _DIAGNOSIS = "step[0-9]*.parquet", "rollouts.parquet"
_SHARED = ("rule", "estimator", "window", "stride", "model")  # a page shows a single value of each


@dataclass(frozen=True)
class RunRollouts:
    """Rollouts of a file, or of all steps of a run."""

    rollouts: list[Rollout]  # groups of several steps are called "3 of step 20"
    settings: dict  # as `write_rollouts` keeps them; `step` only if there is a single step
    steps: dict[str, int] = field(default_factory=dict)  # group -> step; empty for a single file


def read_steps(path: str | Path) -> RunRollouts:
    """Read a file of rollouts, or all such files below a run's folder.

    Raises TableError: the folder holds no such file, or files of several runs; or a file cannot be read.
    """
    path = Path(path)
    files = _files(path) if path.is_dir() else [path]
    if len(files) == 1:
        return RunRollouts(*read_rollouts(files[0]))
    tables = [read_rollouts(file) for file in files]
    first = tables[0][1]
    for file, (_, settings) in zip(files, tables, strict=True):
        if differ := [name for name in _SHARED if settings.get(name) != first.get(name)]:
            raise TableError(f"{files[0]} and {file} differ in their {differ[0]}; name one file")
    rollouts, steps = [], {}
    for table, settings in tables:
        step = int(settings["step"])
        named = [replace(rollout, group=f"{rollout.group} of step {step}") for rollout in table]
        steps |= dict.fromkeys((rollout.group for rollout in named), step)
        rollouts += named
    shared = {name: value for name, value in tables[-1][1].items() if name != "step"}
    return RunRollouts(rollouts, shared, steps)


def _files(folder: Path) -> list[Path]:
    """Return the files of a run's steps, else the file of a diagnosis."""
    found: Iterable[Path] = sorted(folder.rglob(_STEPS)) or [file for file in [folder / _DIAGNOSIS] if file.is_file()]
    folders = sorted({file.parent for file in found})
    if not folders:
        raise TableError(
            f"{folder} holds no rollouts ({_STEPS} or {_DIAGNOSIS}); train with --credit.dump_rollouts_every 20"
        )
    if len(folders) > 1:
        raise TableError(f"{folder} holds rollouts of several runs; name a run, e.g. {folders[0]}")
    return list(found)
