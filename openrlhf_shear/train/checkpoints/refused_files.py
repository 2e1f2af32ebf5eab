"""Notes of the files of a checkpoint or model that the disk refuses, in place of errors.

A rank that raised inside DeepSpeed's `save_checkpoint`, or upstream's `save_model`, would leave the others at its
barriers.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError

from openrlhf_shear.train.checkpoints.folders import NotSavedError

# Words of torch.save's RuntimeError for a full disk: of the zip file, and of the older format.
_OF_A_DISK = ("inline_container", "iostream error", "PytorchStreamWriter", "write(): fd")


class _Noting:
    """DeepSpeed's writer of files, which notes what the disk refuses."""

    def __init__(self, writer: object, problems: list[str]):
        self._writer, self._problems = writer, problems

    def __getattr__(self, name: str) -> object:
        return getattr(self._writer, name)

    def save(self, state_dict: dict, path: str) -> None:
        with noted(self._problems, Path(path)):
            self._writer.save(state_dict, path)


@contextmanager
def noted(problems: list[str], path: Path) -> Iterator[None]:
    """Add to `problems` why the disk refuses what the block writes to `path`; other errors are raised."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in _OF_A_DISK):
            raise
        free = shutil.disk_usage(next(above for above in path.absolute().parents if above.exists())).free
        problems.append(f"{path} could not be written ({error}); its disk has {free / 1e9:.3g} GB left")


def save(engine, folder: Path, client_state: dict, extra: Callable[[Path], None] | None) -> None:
    """Let DeepSpeed write a checkpoint, on every rank, to a folder that exists.

    Args:
        engine: DeepSpeed's engine.
        extra: writes more files into the folder.

    Raises:
        OSError: the disk refuses a file of this rank; all files were tried.
    """
    problems: list[str] = []
    writer = engine.checkpoint_engine
    engine.checkpoint_engine = _Noting(writer, problems)
    try:
        engine.save_checkpoint(str(folder.parent), tag=folder.name, client_state=client_state, save_latest=False)
    except OSError as error:  # of the script that rank 0 copies at the end, before DeepSpeed's last barrier
        problems.append(str(error))
        torch.distributed.barrier()
    finally:
        engine.checkpoint_engine = writer
    if extra is not None:
        with noted(problems, folder / "extra"):
            extra(folder)
    if problems:
        raise OSError(problems[0])


@contextmanager
def removed(folder: Path) -> Iterator[None]:
    """Remove the folder if the disk refuses what the block writes: what it holds takes the room of the next try."""
    try:
        yield
    except NotSavedError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
