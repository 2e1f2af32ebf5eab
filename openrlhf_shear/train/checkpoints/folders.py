"""Checkpoint folders: write them under a temporary name, rename them when complete, check, find and prune them.

    CKPT_PATH/_actor/global_step8.partial    being written, or left behind by a killed run
    CKPT_PATH/_actor/global_step8            complete: complete.json lists each file with its size and digest,
                                             {"model.pt": {"bytes": 6512345, "sha256": "9f86d0..."}, ...}
    CKPT_PATH/_actor/latest                  the name of the newest checkpoint, replaced by a rename

All ranks must see one file system. Plain paths; nothing here knows DeepSpeed or Ray.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from argparse import Namespace
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from openrlhf_shear.data.writing import write_text
from openrlhf_shear.preflight.resources import LOCK, locked

BEST = "best"  # upstream's prefix of the best checkpoint's name
HF = "_hf"
COMPLETE = "complete.json"
PARTIAL = ".partial"
LATEST = "latest"
ACTOR, CRITIC = "_actor", "_critic"  # upstream's folders below CKPT_PATH
UNIVERSAL = "latest_universal"  # DeepSpeed's name
_METRIC = "metric.json"  # upstream's
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
_NAME = re.compile(rf"(?:{BEST}_)?global_step(\d+)")


class Listed(NamedTuple):
    """Entry of complete.json: the size and digest of a file."""

    size: int
    digest: str  # SHA-256


def step_of(name: str) -> int:
    """Return the step in a checkpoint's name; -1 for other names.

    >>> step_of("best_global_step12"), step_of("global_step3.partial"), step_of("global_step4_hf")
    (12, -1, 4)
    """
    match = _NAME.fullmatch(name.removesuffix(HF))
    return int(match[1]) if match else -1


def shares(folders: Iterable[Path], ranks: int) -> list[list[Path]]:
    """Share the files of checkpoints out over ranks, the largest first, because digests of all take minutes."""
    files = [(file.stat().st_size, file) for folder in folders for file in files_in(folder) if file.name != COMPLETE]
    ordered = [file for _, file in sorted(files, reverse=True)]
    return [ordered[rank::ranks] for rank in range(ranks)]


def digests(files: Iterable[Path]) -> dict[Path, str]:
    """Return the SHA-256 of each file."""
    found = {}
    for file in files:
        with file.open("rb") as opened:
            found[file] = hashlib.file_digest(opened, "sha256").hexdigest()
    return found


def changed(files: Iterable[Path]) -> list[str]:
    """Return a line for each file of complete checkpoints whose bytes differ from the recorded digest."""
    lines = []
    for file in files:
        folder = next(folder for folder in file.parents if step_of(folder.name) >= 0)
        try:
            listed = listing(folder).get(str(file.relative_to(folder)))
            if listed and digests([file])[file] != listed.digest:
                lines.append(f"{file} does not have the bytes that were written (SHA-256)")
        except (OSError, ValueError) as error:
            lines.append(f"{file} cannot be read ({error})")
    return lines


def listing(path: Path) -> dict[str, Listed]:
    """Read the entries of a checkpoint's complete.json, by file name.

    Raises:
        ValueError: it cannot be read, or lists no files.
    """
    try:
        read = json.loads((path / COMPLETE).read_text(encoding="utf-8"))
        listed = {name: Listed(entry["bytes"], entry["sha256"]) for name, entry in read.items()}
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise ValueError(f"{COMPLETE} cannot be read") from None
    if not listed:
        raise ValueError(f"{COMPLETE} lists no files")
    return listed


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


class NotOursError(RuntimeError):
    """Error of a folder that this run may not write to; the message says why, and what to do."""


class NotSavedError(RuntimeError):
    """Error of a checkpoint that the disk refuses; the run can go on without it."""


def lock_own(ckpt: Namespace, patience: float = 60.0) -> TextIO:
    """Lock --ckpt.path for the life of this process, within `patience` seconds: a killed attempt may still hold it.

    Raises:
        NotOursError: another run has the lock, or finished here since this run was checked; or there are no locks.
    """
    file = _lock(Path(ckpt.path), patience)
    there = names(Path(ckpt.path, ACTOR))
    if there and ckpt.save_steps > 0 and not ckpt.load_enable:
        why = f"--ckpt.path {ckpt.path} has checkpoints of another run ({', '.join(there[:3])})"
        raise NotOursError(f"{why}; use --ckpt.load_enable to resume that run, or another folder")
    return file


def lock_again(folder: Path, file: TextIO) -> TextIO:
    """Return the lock `file` of --ckpt.path; a new one if the folder was removed, which another run may have by now.

    Raises:
        NotOursError: another run has the lock, or has saved there.
    """
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(file.fileno()), os.stat(folder / LOCK)):
            return file
        if there := names(folder / ACTOR):
            why = f"--ckpt.path {folder} was removed, and has checkpoints of another run ({', '.join(there[:3])})"
            raise NotOursError(f"{why}; resume from another folder")
    return _lock(folder, patience=0.0)


def _lock(folder: Path, patience: float) -> TextIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w")
        is_ours = locked(file, patience)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            why = f"the file system of --ckpt.path has no locks ({error}), so two runs could write there"
            raise NotOursError(f"{why}; mount it with them (Lustre: -o flock), or use another path") from error
        raise NotOursError(f"--ckpt.path cannot be written to ({error}); use a disk with room, and inodes") from error
    if not is_ours:
        raise NotOursError(f"another run writes to --ckpt.path {folder}; wait for it, stop it, or use another folder")
    return file


def commit(folder: Path, tag: str, found: Mapping[Path, str], latest: bool = True) -> None:
    """Rename `tag.partial`, which all ranks have written, to `tag`; `found` has the digests of its files.

    With `latest`, the file of this name names it from then on.
    """
    partial, final = folder / f"{tag}{PARTIAL}", folder / tag
    listed = {
        str(file.relative_to(partial)): {"bytes": file.stat().st_size, "sha256": digest}
        for file, digest in found.items()
    }
    write_text(partial / COMPLETE, json.dumps(listed, indent=1, sort_keys=True))
    replace(partial, final)
    if latest:
        write_text(folder / LATEST, tag)


def replace(source: Path, target: Path) -> None:
    """Rename a folder over another, which may exist and is deleted last."""
    old = target.with_name(f"{target.name}.old{PARTIAL}")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def flaw(path: Path) -> str:
    """Return what is wrong with a checkpoint, or "" if it is complete; `changed` compares the bytes of its files.

    All files must lie in its parent folder, links resolved, because loading a checkpoint runs code.
    """
    try:
        home = path.parent.resolve()
        for file in (path, *path.rglob("*")):
            if not file.resolve().is_relative_to(home):
                return f"{file.relative_to(path.parent)} leads out of {path.parent}"
        if not os.path.lexists(path / COMPLETE):
            return "it was never finished"
        for name, listed in listing(path).items():
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != listed.size:
                return f"{name} has {file.stat().st_size} bytes of {listed.size}"
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a circular link
        return f"{error}" if type(error) is ValueError else f"it cannot be read ({error})"
    return ""


def find(folders: Sequence[Path], without: Collection[str] = ()) -> tuple[str | None, list[str]]:
    """Return the newest checkpoint that is complete in all `folders`, and a line for each newer incomplete one.

    A regular checkpoint is preferred to the best checkpoint of the same step. Names in `without` are skipped.
    """
    names = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_dir()}
    skipped = []
    for name in sorted(names, key=lambda name: (step_of(name.removesuffix(PARTIAL)), name), reverse=True):
        if step_of(name.removesuffix(PARTIAL)) < 0 or name.endswith(HF) or name in without:
            continue
        flaws = [f"{folder / name}: {problem}" for folder in folders if (problem := flaw(folder / name))]
        if not flaws and not name.endswith(PARTIAL):
            return name, skipped
        skipped += flaws or [f"{folders[0] / name}: it was never finished"]
    return None, skipped


def no_fresh_start(folder: Path) -> str:
    """Say why a run may not start afresh beside what `find` passed over; "" if it may, as beside `.partial` folders.

    Such checkpoints are damaged, or another program's, as OpenRLHF's without complete.json.
    """
    there = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    there = [path for path in there if step_of(path.name) >= 0 and not path.name.endswith(HF)]
    if not there:
        return ""
    newest = max(there, key=lambda path: step_of(path.name))
    why = flaw(newest) or "its files do not have the bytes that were written"
    return f"no checkpoint can be resumed from: {newest}: {why}; move them away, or use another --ckpt.path"


def named_in(folder: Path, file: str) -> str | None:
    """Return the checkpoint that a file of `folder` names (as `latest` does); None if there is no such file.

    Raises:
        ValueError: the file names a path outside the folder.
    """
    if not (folder / file).is_file():
        return None
    name = (folder / file).read_text(encoding="utf-8").strip()
    if not name or Path(name).name != name or not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{folder / file} must name a checkpoint of that folder: got {name!r}; checkpoints are code")
    return name


def prune(folder: Path, max_num: int, max_gb: float) -> list[str]:
    """Delete old checkpoints and the leftovers of killed runs; return the deleted names.

    The rules are upstream's (`DeepspeedStrategy.save_ckpt`), but applied after the new checkpoint is saved, and only to
    checkpoints with a list of their files. At most `max_num` regular checkpoints stay, and with the best one `max_gb`.
    Checkpoints without a metric are deleted first, then those with the worst metric, then the oldest. The checkpoint
    that `latest` names stays.
    """
    named = _named(folder) or max(names(folder), key=step_of, default="")
    gone = [path for path in folder.glob(f"*{PARTIAL}") if path.is_dir()]
    regular = [path for path in folder.iterdir() if (path / COMPLETE).is_file() and _is_regular(path.name)]
    regular.sort(key=lambda path: (path.name == named, *_worth(path), step_of(path.name)))
    sizes = {path: sum(file.stat().st_size for file in files_in(path)) for path in folder.iterdir() if path.is_dir()}
    while regular and regular[0].name != named:
        staying = [path for path in sizes if path not in gone]
        if len(regular) <= max(max_num, 1) and sum(sizes[path] for path in staying) <= max_gb * 1024**3:
            break
        gone.append(regular.pop(0))
    for path in gone:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in gone]


def discard(folder: Path, tag: str) -> None:
    """Delete a checkpoint; if `latest` names it, `latest` then names the newest regular one that is complete."""
    shutil.rmtree(folder / tag, ignore_errors=True)
    if _named(folder) == tag:
        regular = [name for name in names(folder) if _is_regular(name)]
        if regular:
            write_text(folder / LATEST, regular[-1])
        else:
            (folder / LATEST).unlink()


def prune_hf(folder: Path, tags: Collection[str], max_num: int | None) -> None:
    """Delete the regular `global_stepN_hf` models of `folder` whose checkpoints are not in `tags`.

    If the run saves no checkpoints, `max_num` is given, and the newest `max_num` models stay.
    """
    models = [path for path in folder.glob(f"global_step*{HF}") if path.is_dir()]
    models.sort(key=lambda path: step_of(path.name))
    if max_num is not None:
        tags = [path.name.removesuffix(HF) for path in models[-max(max_num, 1) :]]
    for path in [*models, *folder.glob(f"*{HF}{PARTIAL}")]:
        if path.name.removesuffix(HF) not in tags:
            shutil.rmtree(path, ignore_errors=True)


def prune_best(folder: Path, tag: str) -> None:
    """Delete the best checkpoints and models (`_hf`) of `folder`, except the one named `tag`."""
    for path in folder.glob(f"{BEST}*"):
        if path.is_dir() and path.name.removesuffix(HF) != tag:
            shutil.rmtree(path, ignore_errors=True)


def names(folder: Path) -> list[str]:
    """Return the complete checkpoints of a folder, oldest first."""
    tags = [path.name for path in folder.iterdir() if step_of(path.name) >= 0] if folder.is_dir() else []
    return sorted((tag for tag in tags if not tag.endswith(HF) and not flaw(folder / tag)), key=step_of)


def _is_regular(name: str) -> bool:
    return step_of(name) >= 0 and not name.startswith(BEST) and not name.endswith(HF)


def _worth(path: Path) -> tuple[bool, float]:
    """Return a sort key: whether there is a metric, and its value."""
    try:
        metric = json.loads((path / _METRIC).read_text(encoding="utf-8")).get("metric_value")
        return metric is not None, float(metric or 0.0)
    except (OSError, ValueError, TypeError, AttributeError):
        return False, 0.0


def _named(folder: Path) -> str:
    """Return the name in `latest`; "" if it cannot be read."""
    try:
        return (folder / LATEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
