"""Whether a model can be saved, checked before the first step, and notes of the files that the disk refuses.

They are notes in place of errors: a rank that raised inside DeepSpeed's `save_checkpoint`, or upstream's `save_model`,
would leave the others at its barriers.
"""

import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from openrlhf.utils.logging_utils import init_logger
from peft import PeftModel
from safetensors import SafetensorError

from openrlhf_shear.train.checkpoints.folders import NotSavedError
from openrlhf_shear.train.screen.outcome import ModelNotWrittenError, RefusedError

logger = init_logger(__name__)
# Words of torch.save's RuntimeError for a full disk: of the zip file, and of the older format.
_OF_A_DISK = ("inline_container", "iostream error", "PytorchStreamWriter", "write(): fd")


def without_adapters(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model below LoRA's adapters, or `model` itself."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


@contextmanager
def model_written(ckpt: Namespace) -> Iterator[None]:
    """Name the remedy, in a ModelNotWrittenError, if the disk refuses a trained model inside the context."""
    try:
        yield
    except OSError as error:
        again = "the same line with --ckpt.load_enable writes it from the last checkpoint"
        remedy = f"make room, then {again}" if ckpt.save_steps > 0 else "no checkpoint was made (--ckpt.save_steps)"
        message = f"the model could not be written to --ckpt.output_dir: {error}"
        raise ModelNotWrittenError(f"{message}; {remedy}") from error


def repair_generation(model: torch.nn.Module) -> str:
    """Set `do_sample` if the generation config has sampling flags without it, which transformers refuses to write.

    An example of such a flag is temperature 0.6. Returns transformers' message in a line; "" if there was nothing to
    repair, or if `do_sample` does not help.
    """
    generation = without_adapters(model).generation_config if without_adapters(model).can_generate() else None
    if generation is None or generation.do_sample or not (problem := _refusal(generation)):
        return ""
    before, generation.do_sample = generation.do_sample, True
    if _refusal(generation):
        generation.do_sample = before
        return ""
    return problem


def refuse_unsaveable(flag: str, model: torch.nn.Module, tokenizer) -> None:
    """Check that a model's files beside its weights can be saved, by saving them to a temporary folder.

    Raises RefusedError, which names the model's flag: transformers refuses one of them.
    """
    if problem := repair_generation(model):
        logger.warning(f"{flag}: saved models get do_sample true in generation_config.json: {problem}")
    base = without_adapters(model)
    parts = [("config.json", base.config), ("tokenizer", tokenizer)]
    if base.can_generate():
        parts.append(("generation_config.json", base.generation_config))
    if isinstance(model, PeftModel):
        parts += [("adapter_config.json", adapters) for adapters in model.peft_config.values()]
    for name, part in parts:
        if problem := _refusal(part):
            raise RefusedError(
                f"{flag} has a {name} that can be loaded and cannot be saved ({problem}); use a corrected copy"
            )


def _refusal(part) -> str:
    """Return why `save_pretrained` refuses a part of a model; "" if it does not."""
    with TemporaryDirectory() as folder:
        try:
            part.save_pretrained(folder)
        except Exception as error:  # a faulty file can raise anything
            lines = str(error).splitlines()[:2]  # transformers puts the cause into the second
            return f"{type(error).__name__}: {' '.join(line.strip('- ') for line in lines)}"
    return ""


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
